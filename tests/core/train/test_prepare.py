"""Data and prompts that a train run cannot use are refused before its first step."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core.jobs import UserError
from core.store import events, rollouts
from core.tasks.pool import VerifierPool
from core.train.loop import run_training
from tests.core.train.service import Service


def test_template_arguments_for_a_model_without_a_template_are_named(tmp_path: Path) -> None:
    service = Service(tmp_path)
    run_id = service.post(prompt={"template_kwargs": {"enable_thinking": False}})
    with (
        VerifierPool(workers=1) as pool,
        pytest.raises(UserError, match=r"prompt\.template_kwargs sets enable_thinking") as refused,
    ):
        run_training(service.attempt(run_id), pool)
    assert refused.value.code == "unusable_prompt"


Items = Sequence[dict[str, str]]
LINES = [{"id": f"i{n}", "prompt": f"{n} + 1?", "answer": str(n + 1)} for n in range(8)]
LONG = [{"id": f"long{n}", "prompt": f"What is {n} plus {'0' * 40}1?", "answer": str(n + 1)} for n in range(2)]


def posted(service: Service, *, train: Items, suite: Items = (), **changes: Any) -> str:
    """A run of one step over items of a file, looking at those of another."""
    folder = service.settings.home / "items"
    folder.mkdir()
    for name, lines in (("train", train), ("suite", suite or LINES[:4])):
        text = "".join(json.dumps(line | {"id": f"{name}-{line['id']}"}) + "\n" for line in lines)
        (folder / f"{name}.jsonl").write_text(text)
    service.settings = replace(service.settings, data_dir=folder)
    data = {"dataset": "file:train.jsonl", "holdout": 0}
    return service.post(data=data, max_steps=1, max_prompt_length=20, damage_stop=None, **changes)


def test_training_prompts_over_the_limit_are_dropped_counted_and_named(service: Service, pool: VerifierPool) -> None:
    run_id = posted(service, train=[*LINES[:4], *LONG, *LINES[4:]], looks=None, prompts_per_step=8)
    assert run_training(service.attempt(run_id), pool).state == "succeeded"
    with service.db.read() as session:
        told = [event["message"] for event in events.payloads(session, run_id, "data_warning")]
        asked = {row.item_id for row in rollouts.page(session, run_id, limit=100).items}
    assert told == ["2 training items have prompts of more than 20 tokens and were dropped: train-long0, train-long1"]
    assert asked == {f"train-{line['id']}" for line in LINES}


def test_a_limit_that_drops_every_prompt_is_refused(service: Service, pool: VerifierPool) -> None:
    run_id = posted(service, train=LONG, looks=None, prompts_per_step=1)
    with pytest.raises(UserError, match=r"every prompt of .* is longer than max_prompt_length 20 tokens; raise it"):
        run_training(service.attempt(run_id), pool)


def test_an_asked_item_over_the_limit_is_an_error_with_its_name_and_length(
    service: Service, pool: VerifierPool
) -> None:
    looks = {"every": 1, "suites": ["file:suite.jsonl"]}
    run_id = posted(service, train=LINES, suite=[*LINES[:3], LONG[0]], looks=looks, prompts_per_step=1)
    # One token per character, and one that begins the text.
    length = 1 + len(LONG[0]["prompt"])
    with pytest.raises(
        UserError, match=rf"suite-long0 .*a prompt of {length} tokens.*raise max_prompt_length to {length}"
    ):
        run_training(service.attempt(run_id), pool)
