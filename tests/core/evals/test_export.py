"""Exported files hold every record, in columns that do not depend on content, a page at a time."""

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from core.evals import export
from core.store import evaluations, prompts, rollouts
from core.store.models import Evaluation
from tests.core.train.service import Service

N = 7


def record(position: int, sample: int, verdict: str = "correct") -> dict[str, Any]:
    return {
        "item_id": f"item-{position}", "cluster": None, "position": position, "sample": sample,
        "prompt_sha256": "a" * 64, "token_ids": [5, position, sample], "text": f"ünsinn \\boxed{{{position}}}",
        "gold": str(position), "extracted": str(position) if sample == 0 else None, "verdict": verdict, "reason": "same",
        "finish_reason": "stop", "n_tokens": 3, "verifier_version": "math/1", "verify_ms": 1.5,
        "details": {"strict": 1.0},
    }  # fmt: skip


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Service, Evaluation]:
    """An evaluation of seven items with two samples each, and pages of three."""
    service = Service(tmp_path)
    monkeypatch.setattr(export, "PAGE", 3)
    context = service.attempt(service.post())
    with service.db.fenced(context.fence) as session:
        prompts.put_many(session, [("a" * 64, [1, 2], "the prompt")])
        made = evaluations.start(
            session, context.fence, step=None, purpose="eval", model_ref="tiny", suite="file:x/y.jsonl", mode="sampled",
            n_items=N, samples=2, params={"temperature": 0.6, "top_p": 0.95, "max_tokens": 8, "stop": ["\n"]},
            verifier="math", verifier_version="math/1",
        )  # fmt: skip
        rows = [
            record(position, sample, "correct" if sample else "wrong") for position in range(N) for sample in (0, 1)
        ]
        evaluations.add_records(session, context.fence, made, rows)
        row = evaluations.finish(session, context.fence, made, accuracy=0.5)
        rollouts.add_step(
            session,
            context.fence,
            1,
            [
                {
                    "group_index": n,
                    "item_id": f"i{n}",
                    "sample": 0,
                    "prompt_sha256": "a" * 64,
                    "token_ids": [n],
                    "text": "t",
                    "reward": 0.5,
                    "reward_terms": {"math": 1.0, "random": None},
                    "n_tokens": 1,
                    "finish_reason": "stop",
                }
                for n in range(N)
            ],
        )
    return service, row


def test_parquet_and_json_lines_hold_the_same_records(stored: tuple[Service, Evaluation]) -> None:
    service, row = stored
    lines = [json.loads(line) for line in b"".join(export.jsonl(export.record_rows(service.db, row))).splitlines()]
    assert [(line["item_id"], line["sample"]) for line in lines] == [(f"item-{n}", s) for n in range(N) for s in (0, 1)]
    assert lines[3]["prompt"] == "the prompt"
    assert lines[3]["details"] == {"strict": 1.0}
    assert set(lines[0]) == set(export.RECORD_COLUMNS)
    chunks = list(export.parquet(export.record_rows(service.db, row), export.RECORD_COLUMNS))
    table = pq.read_table(io.BytesIO(b"".join(chunks)))
    assert table.column_names == list(export.RECORD_COLUMNS)
    plain = [line | {"details": json.dumps(line["details"]), "regrades": "[]"} for line in lines]
    assert table.to_pylist() == plain
    assert len(chunks) > 4  # given out as it was written
    assert pq.ParquetFile(io.BytesIO(b"".join(chunks))).num_row_groups == 5


def test_an_empty_file_still_has_its_columns(stored: tuple[Service, Evaluation]) -> None:
    table = pq.read_table(io.BytesIO(b"".join(export.parquet([], export.ROLLOUT_COLUMNS))))
    assert (table.num_rows, table.column_names) == (0, list(export.ROLLOUT_COLUMNS))


def test_rollouts_are_exported_with_their_terms(stored: tuple[Service, Evaluation]) -> None:
    service, row = stored
    rows = list(export.rollout_rows(service.db, row.run_id))
    assert [one["item_id"] for one in rows] == [f"i{n}" for n in range(N)]
    assert set(rows[0]) == set(export.ROLLOUT_COLUMNS)
    table = pq.read_table(io.BytesIO(b"".join(export.parquet(iter(rows), export.ROLLOUT_COLUMNS)))).to_pylist()
    assert json.loads(table[2]["reward_terms"]) == {"math": 1.0, "random": None}
    assert list(export.rollout_rows(service.db, row.run_id, step=2)) == []


def test_the_sample_log_is_lm_evals(stored: tuple[Service, Evaluation]) -> None:
    service, row = stored
    lines = [json.loads(line) for line in b"".join(export.lm_eval(service.db, row)).splitlines()]
    assert [line["doc_id"] for line in lines] == list(range(N))
    fourth = lines[3]
    assert list(fourth) == [
        "doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics", "doc_hash",
        "prompt_hash", "target_hash", "acc",
    ]  # fmt: skip
    assert fourth["resps"] == [["ünsinn \\boxed{3}", "ünsinn \\boxed{3}"]]
    assert fourth["filtered_resps"] == [["3", ""]]
    assert (fourth["acc"], fourth["target"], fourth["metrics"]) == (0.5, "3", ["acc"])
    assert fourth["arguments"]["gen_args_0"]["arg_0"] == "the prompt"
    assert fourth["arguments"]["gen_args_0"]["arg_1"]["until"] == ["\n"]
    assert fourth["prompt_hash"] == hashlib.sha256(b"the prompt").hexdigest()
    assert (
        fourth["doc_hash"]
        == hashlib.sha256(json.dumps(fourth["doc"], indent=2, ensure_ascii=False).encode()).hexdigest()
    )
    assert export.lm_eval_name(row, "2026-01-02T03:04:05Z") == "samples_file_x_y.jsonl_2026-01-02T03-04-05Z.jsonl"


def test_memory_holds_a_page_and_not_the_evaluation(stored: tuple[Service, Evaluation]) -> None:
    service, row = stored
    read: list[int] = []

    def counted() -> Any:
        for number, one in enumerate(export.record_rows(service.db, row), 1):
            read.append(number)
            yield one

    chunks = export.parquet(counted(), export.RECORD_COLUMNS)
    next(chunks)
    assert len(read) <= 2 * export.PAGE


# A line of samples_own_math_2026-12-01T00-31-37.933890.jsonl, which lm-eval 0.4.13 wrote for a task made for this test: the
# item {"id": "a", "prompt": "1+1=", "answer": "2"}, asked twice of its model "dummy", which answers "lol".
LM_EVALS_OWN = json.loads(
    '{"doc_id": 0, "doc": {"id": "a", "prompt": "1+1=", "answer": "2"}, "target": "2", "arguments": {"gen_args_0": '
    '{"arg_0": "1+1=", "arg_1": {"until": ["\\n"], "do_sample": true, "temperature": 0.6, "max_gen_toks": 8}}}, "resps": '
    '[["lol", "lol"]], "filtered_resps": ["lol"], "filter": "none", "metrics": ["exact_match"], "doc_hash": '
    '"33023a3ac1a6919197173eb3a82083c8b5514dc523c638953bc543a9189e1991", "prompt_hash": '
    '"477d64453f1634425ff37e77980a30dcd72f53d0687ad8ecf00406cc2a1408d5", "target_hash": '
    '"d4735e3a265e16eee03f59718b9b5d03019c07d8b6c51f90da3a666eec13ab35", "exact_match": 0.0}'
)


def test_the_same_item_is_logged_as_lm_eval_itself_logs_it(tmp_path: Path) -> None:
    service = Service(tmp_path)
    context = service.attempt(service.post())
    wanted = LM_EVALS_OWN["arguments"]["gen_args_0"]["arg_1"]
    params = {"temperature": wanted["temperature"], "top_p": 1.0, "max_tokens": 8, "stop": wanted["until"]}
    asked = {"item_id": "a", "gold": "2", "text": "lol", "extracted": "lol", "prompt_sha256": "b" * 64}
    with service.db.fenced(context.fence) as session:
        prompts.put_many(session, [("b" * 64, [1], "1+1=")])
        made = evaluations.start(
            session, context.fence, step=None, purpose="eval", model_ref="tiny", suite="own_math", mode="sampled",
            n_items=1, samples=2, params=params, verifier="math", verifier_version="math/1",
        )  # fmt: skip
        evaluations.add_records(session, context.fence, made, [record(0, n, "wrong") | asked for n in (0, 1)])
        row = evaluations.finish(session, context.fence, made, accuracy=0.0)
    (line,) = map(json.loads, b"".join(export.lm_eval(service.db, row)).splitlines())
    assert list(line) == [*list(LM_EVALS_OWN)[:-1], "acc"]
    assert line["arguments"]["gen_args_0"].pop("arg_1") == wanted | {"top_p": 1.0}
    ours = {"acc": 0.0, "metrics": ["acc"], "filter": "math", "filtered_resps": [["lol", "lol"]]}  # both samples count
    expected = {name: value for name, value in LM_EVALS_OWN.items() if name != "exact_match"} | ours
    expected["arguments"] = {"gen_args_0": {"arg_0": "1+1="}}
    assert line == expected


@pytest.mark.parametrize("suite", ["gsm8k", "reasoning_gym:chain_sum", "file:x/y z.jsonl", "mbpp_sanitized"])
def test_a_file_name_is_read_back_by_lm_evals_rule(suite: str) -> None:
    """Its loaders take the task from between the first and the last underscore, and the time from behind the last."""
    name = export.lm_eval_name(Evaluation(suite=suite), "2026-01-02T03:04:05Z")
    head, _, rest = name.partition("_")
    task, _, at = rest.rpartition("_")
    assert (head, at) == ("samples", "2026-01-02T03-04-05Z.jsonl")
    assert len(task) == len(suite)
    assert not set(task) & set(' <>:"/|?*')
