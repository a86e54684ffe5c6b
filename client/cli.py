"""The command line ``driftline``: names, options and help of every command, and how errors end.

Help must come at once, so this module imports only the standard library and the errors; a command imports its own work when
it is called (docs/adr/0008). Exit status: 0 succeeded, 2 the run failed, 3 damage_stopped, 4 cancelled, 5 refused, 6 service
not reachable, 130 detached by Ctrl-C, 1 anything else, wrong usage too.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from client.errors import ClientError

Arguments = argparse.Namespace
Command = Callable[[Arguments], int]

INTERRUPTED = 130
_USAGE_ERROR = 1
_SCOPES_TOLD = """

The secret is printed once. read: everything that can be looked at; submit: also
post and steer runs; admin: also delete. Once there is a token, the service
answers nobody without one, and revoking the last one does not change that.
"""
_GRADED_TOLD = """

A line of FILE is {"id", "gold", "prediction"} for math, and {"id", "prompt",
"tests", "prediction"} for code and instructions. One verdict is printed for
each line: correct, wrong, no_answer, timeout, error or infra_error, and why;
with --json as JSON lines. A summary goes to standard error.
"""
_EPILOG = """\
The service's address is DRIFTLINE_URL, else what server.json in DRIFTLINE_HOME
(default ./.driftline) says. A token is read from DRIFTLINE_TOKEN.
"""


def up(given: Arguments) -> int:
    """Start broker, api and one worker in the home folder."""
    from client import starting

    return starting.up(background=given.background, as_json=given.json)


def down(given: Arguments) -> int:
    """Stop the service; a run in progress writes a checkpoint and waits in the queue."""
    from client import starting

    return starting.down(as_json=given.json)


def demo(given: Arguments) -> int:
    """Train a small real model from beginning to end."""
    from client import starting

    return starting.demo(as_json=given.json)


def token(given: Arguments) -> int:
    """Make or revoke a bearer token, on the database of the home folder."""
    from client import tokens

    if given.revoke:
        return tokens.revoke(given.name, as_json=given.json)
    return tokens.make(given.name, given.scope, as_json=given.json)


def list_tokens(given: Arguments) -> int:
    """List bearer tokens, without their secrets."""
    from client import tokens

    return tokens.list_(as_json=given.json)


def submit(given: Arguments) -> int:
    """Post a recipe and follow the run to its outcome."""
    from client import following

    key = given.idempotency_key
    return following.submit(given.file, detach=given.detach, dry_run=given.dry_run, key=key, as_json=given.json)


def probe(given: Arguments) -> int:
    """Measure a train recipe for two minutes on a worker instead of running it."""
    from client import probing

    return probing.probe(given.file, as_json=given.json)


def grade(given: Arguments) -> int:
    """Grade answers in a file, without a service."""
    from client import grading

    options = {"boxed_only": given.boxed_only, "workers": given.workers, "time_limit_s": float(given.time_limit)}
    return grading.grade(given.file, given.kind, as_json=given.json, **options)


def list_runs(given: Arguments) -> int:
    """List runs, newest first."""
    from client import commands

    filters = {name: getattr(given, name) for name in ("state", "kind", "tag", "model")}
    return commands.list_runs(limit=given.limit, as_json=given.json, **filters)


def show(given: Arguments) -> int:
    """Show one run: state, progress, attempts, errors."""
    if given.follow:
        from client import following

        return following.attach(given.run, as_json=given.json)
    from client import commands

    return commands.show(given.run, as_json=given.json)


def curves(given: Arguments) -> int:
    """Show a run's curves: first value, last value, shape."""
    from client import commands

    steps = {"from_step": given.from_step, "to_step": given.to_step, "points": given.points}
    return commands.curves(given.run, keys=given.keys, every=given.all, as_json=given.json, **steps)


def damage_stop(given: Arguments) -> int:
    """Show what the frozen stop rule says of a run."""
    from client import commands

    return commands.damage_stop(given.run, as_json=given.json)


def looks(given: Arguments) -> int:
    """Show a run's looks at the held-out items."""
    from client import commands

    return commands.looks(given.run, items=given.items, as_json=given.json)


def logs(given: Arguments) -> int:
    """Show the end of a run's logs."""
    from client import commands

    wanted = {name: getattr(given, name) for name in ("tail", "level", "search", "attempt")}
    return commands.logs(given.run, follow=given.follow, as_json=given.json, **wanted)


def list_evaluations(given: Arguments) -> int:
    """List a run's evaluations, with their ids."""
    from client import evaluations

    return evaluations.evaluations(given.run, as_json=given.json)


def compare(given: Arguments) -> int:
    """Compare two evaluations item by item: B against A."""
    from client import evaluations

    return evaluations.compare(given.a, given.b, verdicts=given.verdicts, noise=given.noise, as_json=given.json)


def regrade(given: Arguments) -> int:
    """Grade an evaluation's stored answers again; the first verdicts stay."""
    from client import evaluations

    return evaluations.regrade(given.evaluation, detach=given.detach, as_json=given.json)


def export_records(given: Arguments) -> int:
    """Write all records of an evaluation to a file."""
    from client import evaluations

    return evaluations.export_records(given.evaluation, form=given.format, output=given.output, as_json=given.json)


def export(given: Arguments) -> int:
    """Write a checkpoint as a bf16 folder, a GGUF file or an adapter, and follow the run that does it."""
    from client import conversions

    wish = {"format": given.format, "dtype": given.dtype, "rank": given.rank, "records": given.records}
    return conversions.export(given.checkpoint, wish, detach=given.detach, output=given.output, as_json=given.json)


def export_rollouts(given: Arguments) -> int:
    """Write all training samples of a run to a file."""
    from client import evaluations

    return evaluations.export_rollouts(
        given.run, form=given.format, step=given.step, output=given.output, as_json=given.json
    )


def cancel(given: Arguments) -> int:
    """Cancel a run; one that runs writes a checkpoint first."""
    return _change(given, "cancel")


def pause(given: Arguments) -> int:
    """Pause a running run behind a checkpoint."""
    return _change(given, "pause")


def resume(given: Arguments) -> int:
    """Put a paused run back into the queue."""
    return _change(given, "resume")


def _change(given: Arguments, what: str) -> int:
    from client import commands

    return commands.change(given.run, what, as_json=given.json)


def _help(prog: str) -> argparse.HelpFormatter:
    """Paragraphs as they are written, and room for long option names."""
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=28)


class Parser(argparse.ArgumentParser):
    """Wrong usage ends with 1, since 2 means that a run failed; options are never guessed from their beginnings."""

    def __init__(self, **options: object) -> None:
        super().__init__(allow_abbrev=False, formatter_class=_help, **options)  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where help is."""
        self.exit(_USAGE_ERROR, f"error: {message}\n  hint: {self.prog} --help\n")


def parser() -> Parser:
    """The whole command line."""
    root = Parser(
        prog="driftline",
        description="RLVR experiments on one GPU: post a recipe, watch its curves and its damage stop.",
        epilog=_EPILOG,
    )
    root.add_argument("--version", action="store_true", help="print the version")
    table = root.add_subparsers(title="commands", metavar="COMMAND", dest="command", parser_class=Parser)

    def command(name: str, work: Command, *, run: bool = True, more: str = "") -> Parser:
        first_line = (work.__doc__ or "").rstrip(".")
        made: Parser = table.add_parser(
            name, help=first_line[0].lower() + first_line[1:], description=f"{work.__doc__}{more}"
        )
        made.set_defaults(work=work)
        if run:
            made.add_argument("run", metavar="RUN", help="id of a run, or the beginning of it")
        made.add_argument("--json", action="store_true", help="print JSON instead of text for people")
        return made

    _service_commands(command)
    _run_commands(command)
    _evaluation_commands(command)
    return root


def _service_commands(command: Callable[..., Parser]) -> None:
    """Commands that are not about a run that exists."""
    made = command("up", up, run=False)
    made.add_argument("--background", action="store_true", help="detach; `driftline down` stops it")
    command("down", down, run=False)
    command("demo", demo, run=False)
    made = command("token", token, run=False, more=_SCOPES_TOLD)
    made.add_argument("name", metavar="NAME", help="whose it is: a person, a machine, a job")
    what = made.add_mutually_exclusive_group()
    scopes = ["read", "submit", "admin"]
    what.add_argument("--scope", choices=scopes, default="read", help="what it may do (read)")
    what.add_argument("--revoke", action="store_true", help="refuse the token of this name from now on")
    command("tokens", list_tokens, run=False)
    statuses = "\n\nThe exit status is the outcome: 0 succeeded, 2 failed, 3 damage_stopped, 4 cancelled,\n"
    statuses += "5 refused, 6 service not reachable. Ctrl-C detaches and cancels nothing."
    made = command("submit", submit, run=False, more=statuses)
    made.add_argument("file", metavar="FILE", help="recipe as JSON; - reads standard input")
    made.add_argument("-d", "--detach", action="store_true", help="post it and return at once")
    made.add_argument("--dry-run", action="store_true", help="validate and plan; store nothing")
    made.add_argument("--idempotency-key", metavar="KEY", help="repeats with the same key never make a second run")
    made = command("probe", probe, run=False)
    made.add_argument("file", metavar="FILE", help="train recipe as JSON; - reads standard input")
    made = command("grade", grade, run=False, more=_GRADED_TOLD)
    made.add_argument("file", metavar="FILE", help="answers as JSON lines; - reads standard input")
    made.add_argument("--kind", choices=["math", "code", "instructions"], default="math", help="the grader (math)")
    made.add_argument("--boxed-only", action="store_true", help="math: only what stands in \\boxed{} is an answer")
    made.add_argument("--workers", type=_from(1, 256), metavar="N", help="processes (as many as there are cores)")
    made.add_argument("--time-limit", type=_from(1, 3600), default=10, metavar="S", help="seconds for one answer (10)")
    made = command("list", list_runs, run=False)
    for name, text in (
        ("state", "in this state"),
        ("kind", "of this kind"),
        ("tag", "with this tag"),
        ("model", "of this model"),
    ):
        made.add_argument(f"--{name}", help=f"only runs {text}")
    made.add_argument("--limit", type=_from(1, 1000), default=20, metavar="N", help="at most so many (20)")


def _run_commands(command: Callable[..., Parser]) -> None:
    """Commands about one run."""
    made = command("show", show)
    made.add_argument("-f", "--follow", action="store_true", help="follow it; the exit status is its outcome")
    made = command("curves", curves)
    made.add_argument("keys", nargs="*", metavar="KEY", help="names of curves; by default the usual ones")
    made.add_argument("--all", action="store_true", help="every curve of the run")
    made.add_argument("--from-step", type=_from(0), metavar="N", help="first step")
    made.add_argument("--to-step", type=_from(0), metavar="N", help="last step")
    made.add_argument(
        "--points", type=_from(1), default=500, metavar="N", help="at most so many points of a curve (500)"
    )
    command("damage-stop", damage_stop)
    made = command("looks", looks)
    made.add_argument("--items", action="store_true", help="also which items were lost and gained")
    made = command("logs", logs)
    made.add_argument("-f", "--follow", action="store_true", help="print what is written until the run ends")
    made.add_argument("-n", "--tail", type=_from(1, 5000), default=200, metavar="N", help="so many last lines (200)")
    levels = ["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
    made.add_argument("--level", type=str.upper, choices=levels, metavar="LEVEL", help="this level and above")
    made.add_argument("--search", metavar="TEXT", help="only lines with this text")
    made.add_argument("--attempt", type=_from(1), metavar="N", help="only this attempt")
    made = command("export", export, run=False)
    made.add_argument("checkpoint", metavar="CHECKPOINT", help="run:ID/step-N, run:ID/last, or a checkpoint's id")
    made.add_argument("--format", choices=["hf", "gguf", "adapter"], default="hf", help="(hf)")
    made.add_argument("--dtype", choices=["bfloat16", "float16", "float32"], help="of the written weights (bfloat16)")
    made.add_argument("--rank", type=_from(1, 4096), metavar="R", help="of an adapter (16)")
    made.add_argument("--records", type=_from(0), metavar="N", help="greedy answers asked again through it (20)")
    made.add_argument("-d", "--detach", action="store_true", help="post the run and return at once")
    made.add_argument("-o", "--output", metavar="FOLDER", help="download the files there when it is done")
    command("cancel", cancel)
    command("pause", pause)
    command("resume", resume)


def _evaluation_commands(command: Callable[..., Parser]) -> None:
    """Commands about evaluations and what they recorded."""
    command("evals", list_evaluations)
    made = command("compare", compare, run=False)
    made.add_argument("a", metavar="A", help="id of the evaluation before (`driftline evals RUN`)")
    made.add_argument("b", metavar="B", help="id of the evaluation now")
    made.add_argument("--verdicts", default="original", metavar="WHICH", help="original, latest, or a verifier version")
    made.add_argument("--noise", metavar="A,B", help="two evaluations of one model, for the noise floor")
    made = command("regrade", regrade, run=False)
    made.add_argument("evaluation", metavar="EVAL", help="id of an evaluation")
    made.add_argument("-d", "--detach", action="store_true", help="post the run and return at once")
    made = command("export-records", export_records, run=False)
    made.add_argument("evaluation", metavar="EVAL", help="id of an evaluation")
    made.add_argument("--format", choices=["parquet", "jsonl", "lm_eval"], default="parquet", help="(parquet)")
    made.add_argument("-o", "--output", metavar="FILE", help="by default the service's name; - is standard output")
    made = command("export-rollouts", export_rollouts)
    made.add_argument("--format", choices=["parquet", "jsonl"], default="parquet", help="(parquet)")
    made.add_argument("--step", type=_from(0), metavar="N", help="only this step")
    made.add_argument("-o", "--output", metavar="FILE", help="by default the service's name; - is standard output")


def _from(lowest: int, highest: int | None = None) -> Callable[[str], int]:
    """A parser of whole numbers from ``lowest`` to ``highest``."""
    allowed = (
        f"a whole number of at least {lowest}" if highest is None else f"a whole number from {lowest} to {highest}"
    )

    def parse(text: str) -> int:
        if not text.isdecimal() or not lowest <= int(text) <= (highest or int(text)):
            raise argparse.ArgumentTypeError(f"{text!r} is not {allowed}")
        return int(text)

    return parse


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status. Expected errors are told in their own words, without a traceback."""
    root = parser()
    given = root.parse_args(arguments)
    if given.version:
        from importlib.metadata import version

        print(f"driftline {version('driftline')}")
        return 0
    if given.command is None:
        root.print_help()
        return 0
    try:
        return int(given.work(given))
    except ClientError as error:
        _print_error(error, as_json=given.json)
        return error.exit_status
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()
        return _USAGE_ERROR


def _silence_stdout() -> None:
    """The reader of a pipe went away: give the interpreter nowhere to complain when it flushes at its end."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_error(error: ClientError, *, as_json: bool) -> None:
    if as_json:
        import json

        sys.stdout.write(json.dumps(error.body(), ensure_ascii=False) + "\n")
        return
    from client import words

    label = "\033[31merror\033[0m" if sys.stderr.isatty() else "error"
    sys.stderr.write(f"{label}: {words.plain(error.message)}\n")
    for name, text in (("field", error.param), ("hint", error.hint)):
        if text:
            sys.stderr.write(f"  {name}: {words.plain(text)}\n")


if __name__ == "__main__":
    sys.exit(main())
