"""Records of an evaluation, and training samples, as files: Parquet, JSON lines, and lm-evaluation-harness' sample log.

Everything is a generator of bytes that reads the store a page at a time, so memory does not grow with the number of records.
The columns are fixed (:data:`RECORD_COLUMNS`, :data:`ROLLOUT_COLUMNS`); what differs from run to run is JSON text in Parquet.
"""

import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from core.store import evaluations, prompts, regrades, rollouts
from core.store.database import Database
from core.store.models import Evaluation, ItemRecord, Prompt, Rollout

PAGE = 256

# Column -> Parquet type. "json" columns are objects in JSON lines and text in Parquet.
RECORD_COLUMNS: dict[str, str] = {
    "evaluation_id": "string",
    "suite": "string",
    "model_ref": "string",
    "item_id": "string",
    "cluster": "string",
    "position": "int64",
    "sample": "int64",
    "prompt_sha256": "string",
    "prompt": "string",
    "token_ids": "ids",
    "text": "string",
    "gold": "string",
    "extracted": "string",
    "verdict": "string",
    "reason": "string",
    "finish_reason": "string",
    "n_tokens": "int64",
    "verifier": "string",
    "verifier_version": "string",
    "verify_ms": "float64",
    "details": "json",
    "regrades": "json",
}
ROLLOUT_COLUMNS: dict[str, str] = {
    "id": "string",
    "run_id": "string",
    "attempt": "int64",
    "step": "int64",
    "group_index": "int64",
    "item_id": "string",
    "sample": "int64",
    "prompt_sha256": "string",
    "prompt": "string",
    "token_ids": "ids",
    "text": "string",
    "reward": "float64",
    "reward_terms": "json",
    "verdict": "string",
    "reason": "string",
    "extracted": "string",
    "advantage": "float64",
    "logp_mean": "float64",
    "n_tokens": "int64",
    "finish_reason": "string",
    "zero_variance": "bool",
    "used": "bool",
    "weights_version": "int64",
    "superseded": "bool",
}

Row = dict[str, Any]


@dataclass(frozen=True)
class _Graded:
    """A record with its rendered prompt and its later verdicts, oldest grading first."""

    record: ItemRecord
    prompt: Prompt | None
    later: list[Row]


def later_verdicts(found: Sequence[tuple[Any, Any]]) -> list[Row]:
    """Later verdicts of one record as documents, oldest grading first."""
    return [
        {
            "regrade_id": regrade.id,
            "verifier_version": regrade.verifier_version,
            "verdict": verdict.verdict,
            "reason": verdict.reason,
            "extracted": verdict.extracted,
        }
        for regrade, verdict in found
    ]


def record_rows(db: Database, evaluation: Evaluation) -> Iterator[Row]:
    """Yield the records of an evaluation with the columns of :data:`RECORD_COLUMNS`, in the suite's order."""
    for graded in _graded(db, evaluation.id):
        record = graded.record
        own = {name: getattr(record, name) for name in RECORD_COLUMNS if hasattr(record, name)}
        yield own | {
            "suite": evaluation.suite,
            "model_ref": evaluation.model_ref,
            "verifier": evaluation.verifier,
            "prompt": graded.prompt.text if graded.prompt else None,
            "regrades": graded.later,
        }


def rollout_rows(db: Database, run_id: str, **filters: Any) -> Iterator[Row]:
    """Yield a run's training samples by step with the columns of :data:`ROLLOUT_COLUMNS`; filters are those of the listing."""
    after: str | None = None
    while True:
        with db.read() as session:
            page = rollouts.page(session, run_id, after=after, limit=PAGE, **filters)
            texts = prompts.get_many(session, {row.prompt_sha256 for row in page.items})
        for row in page.items:
            yield _rollout(row, texts.get(row.prompt_sha256))
        if not page.has_more:
            return
        after = page.next


def _rollout(row: Rollout, prompt: Prompt | None) -> Row:
    own = {name: getattr(row, name) for name in ROLLOUT_COLUMNS if hasattr(row, name)}
    return own | {"id": str(row.id), "prompt": prompt.text if prompt else None}


def _graded(db: Database, evaluation_id: str) -> Iterator[_Graded]:
    after: tuple[int, int] | None = None
    while True:
        with db.read() as session:
            records = evaluations.records_after(session, evaluation_id, after, PAGE)
            texts = prompts.get_many(session, {record.prompt_sha256 for record in records})
            later = regrades.of_records(session, [record.id for record in records])
        for record in records:
            yield _Graded(record, texts.get(record.prompt_sha256), later_verdicts(later.get(record.id, [])))
        if len(records) < PAGE:
            return
        after = (records[-1].position, records[-1].sample)


def jsonl(rows: Iterable[Row]) -> Iterator[bytes]:
    """One JSON object a line."""
    for row in rows:
        yield json.dumps(row, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace") + b"\n"


def parquet(rows: Iterable[Row], columns: Mapping[str, str]) -> Iterator[bytes]:
    """A Parquet file, a row group a page; the bytes are given out as they are written."""
    import pyarrow as pa
    from pyarrow import parquet as pq

    types = {
        "string": pa.string(),
        "json": pa.string(),
        "int64": pa.int64(),
        "float64": pa.float64(),
        "bool": pa.bool_(),
        "ids": pa.list_(pa.int32()),
    }
    schema = pa.schema({name: types[kind] for name, kind in columns.items()})
    texts = [name for name, kind in columns.items() if kind == "json"]
    sink = _Sink()
    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        for page in _pages(rows, PAGE):
            plain = [row | {name: json.dumps(row[name], sort_keys=True) for name in texts} for row in page]
            writer.write_table(pa.Table.from_pylist(plain, schema=schema))
            yield sink.taken()
    yield sink.taken()


class _Sink(io.RawIOBase):
    """A file that can only be written, and whose bytes are taken away as they come."""

    def __init__(self) -> None:
        super().__init__()
        self._bytes = bytearray()
        self._before = 0

    def writable(self) -> bool:
        """Always."""
        return True

    def write(self, data: Any) -> int:
        """Append."""
        self._bytes += data
        return len(data)

    def tell(self) -> int:
        """Bytes written so far."""
        return self._before + len(self._bytes)

    def taken(self) -> bytes:
        """What was written since the last call."""
        data, self._bytes = bytes(self._bytes), bytearray()
        self._before += len(data)
        return data


def lm_eval(db: Database, evaluation: Evaluation) -> Iterator[bytes]:
    """lm-evaluation-harness' sample log: one line an item, its samples in ``resps``, ``acc`` its share of right samples.

    Layout of ``samples_TASK_TIME.jsonl`` as its evaluation tracker writes it (0.4): hashes are SHA-256 of the document, the
    prompt and the target. The document holds what is stored of an item: its id, its rendered prompt and its gold answer.
    """
    for number, samples in enumerate(_by_item(_graded(db, evaluation.id))):
        yield (
            json.dumps(_sample_log(evaluation, number, samples), ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        )


def lm_eval_name(evaluation: Evaluation, at: str) -> str:
    """The name that lm-evaluation-harness gives such a file; ``at`` is an ISO time."""
    task = "".join(char if char.isalnum() or char in "-_." else "_" for char in evaluation.suite)
    return f"samples_{task}_{at.replace(':', '-')}.jsonl"


def _sample_log(evaluation: Evaluation, number: int, samples: Sequence[_Graded]) -> Row:
    first = samples[0].record
    prompt = samples[0].prompt.text if samples[0].prompt else ""
    doc = {"id": first.item_id, "prompt": prompt, "answer": first.gold}
    target = first.gold or ""
    extracted = [one.record.extracted or "" for one in samples]
    judged = [one.record for one in samples if one.record.verdict != evaluations.NO_CLAIM]
    score = sum(one.verdict == evaluations.CORRECT for one in judged) / len(judged) if judged else None
    arguments = {
        "until": evaluation.params.get("stop", []),
        "do_sample": evaluation.mode == "sampled",
        "temperature": evaluation.params.get("temperature"),
        "top_p": evaluation.params.get("top_p"),
        "max_gen_toks": evaluation.params.get("max_tokens"),
    }
    return {
        "doc_id": number,
        "doc": doc,
        "target": target,
        "arguments": {"gen_args_0": {"arg_0": prompt, "arg_1": arguments}},
        "resps": [[one.record.text for one in samples]],
        "filtered_resps": [extracted[0] if len(extracted) == 1 else extracted],
        "filter": evaluation.verifier or "none",
        "metrics": ["acc"],
        "doc_hash": _hash(json.dumps(doc, indent=2, ensure_ascii=False)),
        "prompt_hash": _hash(prompt),
        "target_hash": _hash(target),
        "acc": score,
    }


def _by_item(records: Iterable[_Graded]) -> Iterator[list[_Graded]]:
    held: list[_Graded] = []
    for one in records:
        if held and held[0].record.item_id != one.record.item_id:
            yield held
            held = []
        held.append(one)
    if held:
        yield held


def _pages(rows: Iterable[Row], size: int) -> Iterator[list[Row]]:
    held: list[Row] = []
    for row in rows:
        held.append(row)
        if len(held) == size:
            yield held
            held = []
    if held:
        yield held


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
