"""What `driftline probe` prints of a report."""

from io import StringIO

from rich.console import Console

from client.probing import _facts, _parts

REPORT = {
    "prompts": [{"item_id": "a", "text": "What is [2] + 2?", "tokens": 9}],
    "groups": [{}, {}, {}],
    "pass_rate_histogram": [2, 0, 0, 0, 1],
    "zero_variance_share": 1.0,
    "truncated_share": 0.25,
    "completion_cap": 64,
    "mean_completion_tokens": 30.4,
    "memory": {"peak_gib": 1.234, "tokens": 512, "predicted_gib": 1.1},
    "speed": {"decoded_tokens_per_s": 81.2, "trained_tokens_per_s": 400.0},
    "eta": {"step_s": 12.3, "seconds": 5400.0},
    "warnings": ["completions were cut [at 64]"],
}


def test_facts_are_said_in_words_with_their_units() -> None:
    facts = dict(_facts(REPORT))
    assert facts["groups x right answers"] == "2 x 0, 1 x 4"
    assert facts["no difference to learn from"] == "100% of the groups"
    assert facts["truncated"] == "25% of the completions at 64 tokens"
    assert facts["memory"] == "1.23 GiB at 512 tokens, 1.10 predicted"
    assert facts["the whole run"] == "1.5 h"


def test_prompts_and_warnings_are_printed_as_they_are() -> None:
    screen = StringIO()
    console = Console(file=screen, width=100, no_color=True)
    for part in _parts(REPORT):
        console.print(part)
    assert "What is [2] + 2?" in screen.getvalue()
    assert "! completions were cut [at 64]" in screen.getvalue()
