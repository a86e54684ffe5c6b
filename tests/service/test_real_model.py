"""The real small model through the whole service: damage is stopped and explained, no damage is not, a crash is invisible."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.service.live import ROOT, Live, steps_of, values_of, wait_for
from tests.test_docs import commands

# A run takes two minutes on two idle cores, and several times that on busy ones.
pytestmark = [pytest.mark.slow, pytest.mark.faults, pytest.mark.timeout(1200)]


def recipe(**changes: Any) -> dict[str, Any]:
    """The demonstration's recipe, shorter and with smaller steps: most of the time goes into their updates."""
    demo: dict[str, Any] = json.loads((ROOT / "recipes" / "demo-cpu.json").read_text())
    looks = demo["looks"] | {"every": 2, "m": 20}
    return demo | {"max_steps": 4, "prompts_per_step": 2, "looks": looks, "save": {"every": 2}} | changes


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory, smollm2_dir: Path) -> Iterator[Live]:
    home = tmp_path_factory.mktemp("real") / "home"
    target = home / "models" / smollm2_dir.name
    target.mkdir(parents=True)
    for file in smollm2_dir.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    service = Live(home, home / "models")
    yield service
    service.stop()


@pytest.fixture(scope="module")
def undamaged(live: Live) -> dict[str, Any]:
    return live.finished(live.client.submit(recipe())["id"], timeout_s=900)


def test_a_run_that_does_no_damage_is_not_stopped(live: Live, undamaged: dict[str, Any]) -> None:
    assert undamaged["state"] == "succeeded"
    status = live.client.damage_stop(undamaged["id"])
    assert status["state"] in {"no_damage_shown", "insufficient"}
    assert status["prespecified_at"] < status["first_look_at"]
    assert status["base"]["accuracy"] > 0.3
    assert steps_of(live.client.curves(undamaged["id"]), "heldout/accuracy") == [0, 2, 4]


# In fp32 every answer comes out again; in bf16 close calls of so small a model turn, but a broken export agrees in none.
@pytest.mark.parametrize(
    ("form", "options", "file", "least"),
    [
        ("hf", (), "model.safetensors", 0.2),
        ("gguf", (), "model.gguf", 0.2),
        ("gguf", ("--dtype", "float32"), "model.gguf", 1.0),
    ],
)
def test_an_export_answers_as_its_checkpoint_did(
    live: Live, undamaged: dict[str, Any], tmp_path: Path, form: str, options: tuple[str, ...], file: str, least: float
) -> None:
    target = tmp_path / form
    live.command("export", f"{undamaged['id']}/step-4", "--format", form, *options, "--output", str(target))
    assert (target / file).stat().st_size > 0
    query = "select result from analyses where target_run_id = ? and name = 'export' order by created_at desc limit 1"
    [[stored]] = live.rows(query, undamaged["id"])
    result = json.loads(stored)
    dtype = "float32" if options else "bfloat16"
    verified = result["verified"]
    assert (result["format"], result["dtype"]) == (form, dtype)
    assert (verified["source"], verified["records"]) == ("stored", 20)
    assert verified["prefix"] >= least


def test_a_ruined_policy_is_stopped_and_the_lost_items_are_named(live: Live) -> None:
    run = live.finished(live.client.submit(recipe(learning_rate=0.01, max_steps=8))["id"], timeout_s=900)
    assert run["state"] == "damage_stopped"
    status = live.client.damage_stop(run["id"])
    assert status["state"] == "stopped"
    assert status["evidence"]["value"] >= status["evidence"]["threshold"]
    assert status["paired"]["lost"] > status["paired"]["gained"]
    assert len(status["paired"]["lost_items"]) == status["paired"]["lost_items_count"] > 0
    assert "were lost" in status["statement"]
    looks = live.client.looks(run["id"])
    lost = live.client.items(looks[-1]["evaluation_id"], flip="lost")
    assert {item["item_id"] for item in lost} <= set(status["paired"]["lost_items"])


def test_a_killed_runner_leaves_the_same_bits_as_none(live: Live, undamaged: dict[str, Any]) -> None:
    run_id = live.client.submit(recipe())["id"]
    live.at_step(run_id, 3)
    os.kill(wait_for("a runner", lambda: live.runner_pid(run_id)), signal.SIGKILL)
    assert live.finished(run_id, timeout_s=900)["state"] == "succeeded"
    assert live.weights(run_id) == live.weights(undamaged["id"])
    found, expected = live.client.curves(run_id), live.client.curves(undamaged["id"])
    for key in ("reward", "loss", "kl", "entropy"):
        assert steps_of(found, key) == [1, 2, 3, 4]
        assert values_of(found, key) == values_of(expected, key)


def test_the_commands_of_the_documentation_run(live: Live, undamaged: dict[str, Any], tmp_path: Path) -> None:
    # Those left out are what this module does already, or would lock the other tests out (tokens have tests of their own).
    elsewhere = {"up", "down", "submit", "demo", "token", "export"}
    shown = [words for words in commands() if words[0] not in elsewhere or "--dry-run" in words]
    assert len(shown) >= 6
    first, second = (row["id"] for row in live.client.evaluations(undamaged["id"])[:2])
    meant = {"RUN": undamaged["id"], "EVAL": first, "A": first, "B": second}
    answers = {
        "answers.jsonl": {"gold": "5"},
        "programs.jsonl": {"tests": {"type": "assert", "test_list": ["assert f() == 1"]}},
    }
    for name, fields in answers.items():
        (tmp_path / name).write_text(json.dumps({"id": "a", "prediction": "none", **fields}) + "\n")
    for words in shown:
        files = [str(ROOT / word) if word.endswith(".json") else meant.get(word, word) for word in words]
        done = live.command(*files, folder=tmp_path)
        assert done.stdout.strip()
