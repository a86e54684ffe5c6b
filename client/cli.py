"""The command line ``driftline``: names, options and help of every command, and how errors end.

Help must come at once, so this module imports nothing heavier than typer; each command imports its own work when it is
called. Exit status: 0 succeeded, 2 the run failed, 3 damage_stopped, 4 cancelled, 5 refused, 6 service not reachable,
130 detached by Ctrl-C, 1 anything else.
"""

import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from client.errors import ClientError

app = typer.Typer(
    name="driftline",
    help="RLVR experiments on one GPU: post a recipe, watch its curves and its damage stop.",
    epilog="The service's address is DRIFTLINE_URL, else what server.json in DRIFTLINE_HOME (default ./.driftline) says. "
    "A token is read from DRIFTLINE_TOKEN.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_USAGE_ERROR = 2

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text for people.")]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="Id of a run, or the beginning of it.")]


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        from importlib.metadata import version as version_of

        print(f"driftline {version_of('driftline')}")
        _end(0)


@app.command()
def up(
    background: Annotated[bool, typer.Option("--background", help="Detach; `driftline down` stops it.")] = False,
    as_json: Json = False,
) -> None:
    """Start the service: broker, api and one worker in the home folder."""
    from client import starting

    _end(starting.up(background=background, as_json=as_json))


@app.command()
def down(as_json: Json = False) -> None:
    """Stop the service. A run in progress writes a checkpoint and waits in the queue."""
    from client import starting

    _end(starting.down(as_json=as_json))


@app.command()
def demo(as_json: Json = False) -> None:
    """Train a small real model from beginning to end, with looks and a damage stop."""
    from client import starting

    _end(starting.demo(as_json=as_json))


@app.command()
def submit(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Recipe as JSON; - reads standard input.")],
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Post it and return at once.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Validate and plan; store nothing.")] = False,
    idempotency_key: Annotated[
        str | None, typer.Option(help="Repeats with the same key never make a second run.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Post a recipe and follow the run; the exit status is its outcome.

    0 succeeded, 2 failed, 3 damage_stopped, 4 cancelled, 5 refused, 6 service not reachable. Ctrl-C only detaches.
    """
    from client import following

    _end(following.submit(file, detach=detach, dry_run=dry_run, key=idempotency_key, as_json=as_json))


@app.command("list")
def list_runs(
    *,
    state: Annotated[str | None, typer.Option(help="Only runs in this state.")] = None,
    kind: Annotated[str | None, typer.Option(help="Only runs of this kind: train, eval or analysis.")] = None,
    tag: Annotated[str | None, typer.Option(help="Only runs with this tag.")] = None,
    model: Annotated[str | None, typer.Option(help="Only runs of this model.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many.")] = 20,
    as_json: Json = False,
) -> None:
    """List runs, newest first."""
    from client import commands

    _end(commands.list_runs(state=state, kind=kind, tag=tag, model=model, limit=limit, as_json=as_json))


@app.command()
def show(
    run: RunId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow it; the exit status is its outcome.")] = False,
    as_json: Json = False,
) -> None:
    """Show one run: state, progress, attempts, and why it failed if it did."""
    if follow:
        from client import following

        _end(following.attach(run, as_json=as_json))
    from client import commands

    _end(commands.show(run, as_json=as_json))


@app.command()
def curves(
    run: RunId,
    *,
    keys: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY]...", help="Names of curves; by default the usual ones.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every curve of the run.")] = False,
    from_step: Annotated[int | None, typer.Option(min=0, help="First step.")] = None,
    to_step: Annotated[int | None, typer.Option(min=0, help="Last step.")] = None,
    points: Annotated[int, typer.Option(min=1, help="At most so many points of a curve.")] = 500,
    as_json: Json = False,
) -> None:
    """Show a run's curves: first and last value and their shape."""
    from client import commands

    _end(
        commands.curves(
            run, keys=keys or [], from_step=from_step, to_step=to_step, points=points, every=every, as_json=as_json
        )
    )


@app.command("damage-stop")
def damage_stop(run: RunId, as_json: Json = False) -> None:
    """Show what the frozen stop rule says of a run."""
    from client import commands

    _end(commands.damage_stop(run, as_json=as_json))


@app.command()
def looks(
    run: RunId,
    items: Annotated[bool, typer.Option("--items", help="Also which items were lost and gained.")] = False,
    as_json: Json = False,
) -> None:
    """Show a run's looks at the held-out items."""
    from client import commands

    _end(commands.looks(run, items=items, as_json=as_json))


@app.command()
def logs(
    run: RunId,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print what is written until the run ends.")] = False,
    tail: Annotated[int, typer.Option("--tail", "-n", min=1, max=5000, help="So many last lines.")] = 200,
    level: Annotated[str | None, typer.Option(help="DEBUG, INFO, WARNING, ERROR or CRITICAL, and above.")] = None,
    search: Annotated[str | None, typer.Option(help="Only lines with this text.")] = None,
    attempt: Annotated[int | None, typer.Option(min=1, help="Only this attempt.")] = None,
    as_json: Json = False,
) -> None:
    """Show the end of a run's logs."""
    from client import commands

    _end(commands.logs(run, follow=follow, tail=tail, level=level, search=search, attempt=attempt, as_json=as_json))


@app.command()
def cancel(run: RunId, as_json: Json = False) -> None:
    """Cancel a run; one that runs writes a checkpoint first."""
    from client import commands

    _end(commands.change(run, "cancel", as_json=as_json))


@app.command()
def pause(run: RunId, as_json: Json = False) -> None:
    """Pause a running run behind a checkpoint."""
    from client import commands

    _end(commands.change(run, "pause", as_json=as_json))


@app.command()
def resume(run: RunId, as_json: Json = False) -> None:
    """Put a paused run back into the queue."""
    from client import commands

    _end(commands.change(run, "resume", as_json=as_json))


class _Done(SystemExit):
    """A command's own exit status, told apart from typer's 2 for wrong usage: 2 means that a run failed."""


def _end(status: int) -> NoReturn:
    raise _Done(status)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        app(given, prog_name="driftline")
    except _Done as done:
        return int(done.code or 0)
    except SystemExit as stop:
        return 1 if stop.code == _USAGE_ERROR else int(stop.code or 0)
    except ClientError as error:
        _print_error(error, as_json="--json" in given)
        return error.exit_status
    return 0


def _print_error(error: ClientError, *, as_json: bool) -> None:
    if as_json:
        import json

        sys.stdout.write(json.dumps(error.body()) + "\n")
        return
    label = "\033[31merror\033[0m" if sys.stderr.isatty() else "error"
    sys.stderr.write(f"{label}: {error.message}\n")
    for name, text in (("field", error.param), ("hint", error.hint)):
        if text:
            sys.stderr.write(f"  {name}: {text}\n")


if __name__ == "__main__":
    sys.exit(main())
