"""`driftline probe`: post a train recipe as a probe, wait for its report, and print it. Ctrl-C leaves the probe running."""

import sys
import uuid
from typing import TYPE_CHECKING

from client import commands, following, progress
from client.api import DriftlineClient, Json
from client.follow import OUTCOMES, follow

if TYPE_CHECKING:
    from rich.console import RenderableType


def probe(file: str, *, as_json: bool) -> int:
    """Probe the recipe in ``file``; the exit status is the run's outcome."""
    recipe = following.read(file)
    with DriftlineClient() as client:
        run = client.probe(recipe, idempotency_key=str(uuid.uuid4()))
        if not as_json:
            print(f"probe {run['id']}  {client.page_url(run['id'])}", flush=True)
        try:
            with progress.view_for(as_json=as_json) as view:
                for news in follow(client, run["id"]):
                    view.show(news)
                    run = news.run
        except KeyboardInterrupt:
            sys.stderr.write(f"\ndetached; driftline show {run['id']} --json has the report when it is there\n")
            return following.DETACHED
        run = client.run(run["id"])
    if as_json:
        commands.print_json(run["probe_report"])
    elif run["probe_report"] is not None:
        commands.print_parts(*_parts(run["probe_report"]))
    else:
        print(f"no report: {run['outcome_reason']}")
    return OUTCOMES[run["state"]]


def _parts(report: Json) -> list["RenderableType"]:
    """The report for a person: what was asked, what came back, what it costs."""
    from rich.markup import escape
    from rich.table import Table

    prompt = report["prompts"][0]
    told = Table(show_header=False, box=None)
    for name, value in _facts(report):
        told.add_row(name, value)
    shown = f"[bold]the first of {len(report['groups'])} prompts[/bold] ({prompt['tokens']} tokens)\n{escape(prompt['text'])}\n"
    return [shown, told, *(f"[yellow]![/yellow] {escape(warning)}" for warning in report["warnings"])]


def _facts(report: Json) -> list[tuple[str, str]]:
    memory, speed, eta = report["memory"], report["speed"], report["eta"]
    right = ", ".join(f"{count} x {right}" for right, count in enumerate(report["pass_rate_histogram"]) if count)
    return [
        ("groups x right answers", right),
        ("no difference to learn from", f"{report['zero_variance_share']:.0%} of the groups"),
        ("truncated", f"{report['truncated_share']:.0%} of the completions at {report['completion_cap']} tokens"),
        ("mean completion", f"{report['mean_completion_tokens']:.0f} tokens"),
        (
            "memory",
            f"{memory['peak_gib']:.2f} GiB at {memory['tokens']} tokens, {memory['predicted_gib']:.2f} predicted",
        ),
        (
            "speed",
            f"{speed['decoded_tokens_per_s']:.0f} tokens/s decoded, {speed['trained_tokens_per_s']:.0f} trained",
        ),
        ("a step", f"{eta['step_s']:.0f} s"),
        ("the whole run", f"{eta['seconds'] / 3600:.1f} h"),
    ]
