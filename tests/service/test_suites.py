"""Code and instruction suites asked of the real small model by the whole service, sandbox included, and read over REST."""

import base64
import json
import os
import pickle
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.service.live import Live

pytestmark = [pytest.mark.slow, pytest.mark.data, pytest.mark.timeout(1200)]

FILES = ("humaneval.jsonl", "mbpp.jsonl", "ifeval.jsonl", "ifbench.jsonl")
SUITES = ["humaneval", "mbpp", "livecodebench", "ifeval", "ifbench"]
DOUBLING = "```python\nprint(2 * int(input()))\n```\n"


def release_rows() -> list[dict[str, Any]]:
    """Two problems in LiveCodeBench's release format: doubling over the streams, doubling by a method."""
    private = [{"input": "21\n", "output": "42\n", "testtype": "stdin"}]
    packed = base64.b64encode(zlib.compress(pickle.dumps(json.dumps(private)))).decode()
    common = {"platform": "own", "contest_id": "c", "contest_date": "2026-01-01", "difficulty": "easy"}
    streams = {
        "question_title": "Doubling",
        "question_content": "Read a whole number and print twice of it.",
        "question_id": "own_streams",
        "starter_code": "",
        "public_test_cases": json.dumps([{"input": "3\n", "output": "6\n", "testtype": "stdin"}]),
        "private_test_cases": packed,
        "metadata": "{}",
    }
    method = {
        "question_title": "Doubling by a method",
        "question_content": "Return twice the number.",
        "question_id": "own_method",
        "starter_code": "class Solution:\n    def double(self, n: int) -> int:\n        ",
        "public_test_cases": json.dumps([{"input": "3", "output": "6", "testtype": "functional"}]),
        "private_test_cases": "[]",
        "metadata": json.dumps({"func_name": "double"}),
    }
    return [common | streams, common | method]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory, smollm2_dir: Path) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("suites")
    (folder / "models").mkdir()
    (folder / "models" / smollm2_dir.name).symlink_to(smollm2_dir)
    items = folder / "items"
    items.mkdir()
    for name in FILES:
        shutil.copy(Path(os.environ["DRIFTLINE_DATA"]) / name, items / name)  # links are refused
    (items / "livecodebench.jsonl").write_text("".join(json.dumps(row) + "\n" for row in release_rows()))
    service = Live(folder / "home", folder / "models", DRIFTLINE_DATA=str(items))
    yield service
    service.stop()


def recipe(model: str, **changes: Any) -> dict[str, Any]:
    return {
        "kind": "eval",
        "model": model,
        "suites": [{"suite": name, "items": 2} for name in SUITES],
        "engine": "transformers",
        "max_prompt_length": 1024,
        "max_completion_length": 48,
        "batch_size": 8,
        "device": {"kind": "cpu", "memory_gib": 4},
    } | changes


def asked(live: Live, wish: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The evaluations of a run of ``wish`` by suite, once it has succeeded."""
    run = live.finished(live.client.submit(wish)["id"], timeout_s=900)
    assert run["state"] == "succeeded", run["error"]
    return {row["suite"]: row for row in live.client.evaluations(run["id"])}


def test_code_and_instruction_suites_run_from_the_recipe_to_the_records(live: Live, smollm2_dir: Path) -> None:
    found = asked(live, recipe(smollm2_dir.name))
    assert list(found) == SUITES
    for name, evaluation in found.items():
        assert (evaluation["status"], evaluation["n_items"]) == ("finished", 2)
        kind = "instructions" if name in {"ifeval", "ifbench"} else "code"
        assert evaluation["verifier"] == kind
        records = live.client.items(evaluation["id"])
        assert len(records) == 2
        assert sum(record["verdict"] == "correct" for record in records) == evaluation["correct"]
        for record in records:
            assert record["verdict"] in {"correct", "wrong", "no_answer"}, record["reason"]
            assert record["reason"]
            assert record["verifier_version"].startswith(
                "code/1+bubblewrap+python" if kind == "code" else "instructions/"
            )
            assert record["text"]
            assert record["n_tokens"] == len(record["token_ids"]) <= 48
            assert record["finish_reason"] in {"stop", "length"}
            assert record["verify_ms"] > 0
            if kind == "instructions":
                assert 0 <= record["details"]["instructions_strict"] <= 1


def test_programs_are_judged_by_running_them_whatever_the_model_adds(live: Live, smollm2_dir: Path) -> None:
    """The answer begins with a whole program, right for one item and wrong for the other."""
    wish = recipe(smollm2_dir.name, suites=["livecodebench"], prompt={"prefill": DOUBLING}, max_completion_length=2)
    records = live.client.items(asked(live, wish)["livecodebench"]["id"])
    assert {record["item_id"]: record["verdict"] for record in records} == {
        "own_streams": "correct",
        "own_method": "wrong",
    }
    assert {record["extracted"] for record in records} == {"print(2 * int(input()))\n"}
