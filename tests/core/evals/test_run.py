from dataclasses import asdict, dataclass, fields, replace

import pytest

from core.engines.base import Completion, Request, SamplingParams
from core.evals.metrics import wilson
from core.evals.run import Record, evaluate, summarise
from core.streams import stream_seed
from core.tasks.items import Item
from core.tasks.pool import VerifierPool

GREEDY = SamplingParams(temperature=0.0, max_tokens=8)
SAMPLED = SamplingParams(temperature=0.6, top_p=0.95, max_tokens=8)
COLUMNS = {
    "item_id", "cluster", "details", "position", "sample", "prompt_sha256", "token_ids", "text", "gold", "extracted", "verdict",
    "reason", "finish_reason", "n_tokens", "verifier_version", "verify_ms",
}  # fmt: skip


@dataclass(frozen=True)
class Rendered:
    token_ids: tuple[int, ...]
    text: str
    sha256: str
    prefill: str = ""


class ScriptedEngine:
    """Answers from a table keyed by prompt; -1 in it stands for a completion that the length limit cut off."""

    weights_version = 3

    def __init__(self, answers: dict[int, int]) -> None:
        self.answers = answers
        self.calls: list[list[Request]] = []

    def generate(self, requests, params, *, logprobs):
        assert not logprobs  # no record holds them
        self.calls.append(list(requests))
        return [self._answer(request) for request in requests]

    def _answer(self, request: Request) -> Completion:
        answer = self.answers[request.prompt_ids[0]]
        cut = answer < 0
        return Completion((0,) if cut else (answer, 1), (0.0,) * (1 if cut else 2), "length" if cut else "stop", 3)


def render(item: Item) -> Rendered:
    number = int(item.id.removeprefix("i"))
    return Rendered((number,), item.prompt, f"hash-{number}")


def decode(token_ids) -> str:
    return rf"\boxed{{{token_ids[0]}}}" if len(token_ids) == 2 else "cut off"


ITEMS = [Item(f"i{number}", f"p{number}", str(number * 10), "math") for number in range(5)]
RIGHT = {0: 0, 1: 10, 2: 99, 3: -1, 4: 40}


@pytest.fixture(scope="module")
def pool():
    with VerifierPool(workers=1, time_limit_s=10) as started:
        yield started


def run(engine, pool, **options):
    defaults = {"suite": "s", "params": GREEDY, "batch_size": 2, "pool": pool, "seed": 11, "decode": decode}
    return evaluate(engine, render, ITEMS, **{**defaults, **options})


def test_greedy_gives_one_record_per_item_with_the_stored_columns(pool):
    engine, batches = ScriptedEngine(RIGHT), []
    summary = run(engine, pool, on_batch=batches.append)
    records = [record for batch in batches for record in batch]
    assert [len(batch) for batch in batches] == [2, 2, 1]
    assert {field.name for field in fields(Record)} == COLUMNS == set(asdict(records[0]))
    assert [(one.item_id, one.position, one.sample) for one in records] == [(f"i{n}", n, 0) for n in range(5)]
    assert [one.verdict for one in records] == ["correct", "correct", "wrong", "no_answer", "correct"]
    assert (records[1].prompt_sha256, records[1].token_ids, records[1].text) == ("hash-1", (10, 1), r"\boxed{10}")
    assert (records[1].gold, records[1].extracted, records[1].n_tokens) == ("10", "10", 2)
    interval = wilson(3, 5)
    assert (summary.accuracy, summary.ci_low, summary.ci_high) == (0.6, interval.low, interval.high)
    assert (summary.correct, summary.n_items, summary.n_records, summary.finished) == (3, 5, 5, True)
    assert (summary.truncated_share, summary.no_answer_share, summary.timeout_share) == (0.2, 0.2, 0.0)
    assert summary.mean_tokens == pytest.approx((2 * 4 + 1) / 5)
    assert (summary.mode, summary.infra_errors) == ("greedy", 0)


def test_each_sample_has_its_own_seed_whatever_the_batches_and_the_order(pool):
    found = []
    for batch_size in (1, 3, 100):
        engine = ScriptedEngine(RIGHT)
        summary = run(engine, pool, params=SAMPLED, samples=3, batch_size=batch_size)
        found.append([request.seed for call in engine.calls for request in call])
    assert found[0] == found[1] == found[2]
    assert found[0] == [stream_seed(11, "eval", "s", f"i{n}", sample) for n in range(5) for sample in range(3)]
    assert len(set(found[0])) == 15
    assert (summary.mode, summary.n_records, summary.n_items, summary.accuracy) == (
        "sampled",
        15,
        5,
        pytest.approx(0.6),
    )
    assert summary.standard_error == pytest.approx((0.3 / 5) ** 0.5)
    other = ScriptedEngine(RIGHT)
    run(other, pool, params=SAMPLED, samples=3, suite="t")
    assert not set(found[0]) & {request.seed for call in other.calls for request in call}


def test_it_stops_between_batches_and_says_that_it_did(pool):
    engine, batches = ScriptedEngine(RIGHT), []
    summary = run(engine, pool, on_batch=batches.append, should_stop=lambda: len(engine.calls) == 2)
    assert [len(batch) for batch in batches] == [2, 2]
    assert (summary.finished, summary.n_items, len(engine.calls)) == (False, 4, 2)


def test_no_more_than_two_batches_are_held_at_once(pool):
    class Kept:
        """What the evaluation still refers to, counted through the texts it was given."""

        alive = 0

    class Text(str):
        def __new__(cls, value):
            Kept.alive += 1
            return super().__new__(cls, value)

        def __del__(self):
            Kept.alive -= 1

    most = []

    def held(records):
        most.append(Kept.alive)

    items = [Item(f"i{number}", f"p{number}", str(number * 10), "math") for number in range(40)]
    engine = ScriptedEngine({number: number * 10 for number in range(40)})
    summary = evaluate(
        engine, render, items, suite="s", params=GREEDY, batch_size=2, pool=pool, seed=1,
        decode=lambda ids: Text(decode(ids)), on_batch=held,
    )  # fmt: skip
    assert (summary.finished, summary.accuracy, len(most)) == (True, 1.0, 20)
    assert max(most) <= 6
    assert Kept.alive == 0


def test_the_prefill_is_part_of_what_is_judged_and_not_of_the_record(pool):
    batches = []
    summary = evaluate(
        ScriptedEngine(RIGHT), lambda item: replace(render(item), prefill=r"so \boxed{"), ITEMS[:2], suite="s",
        params=GREEDY, batch_size=2, pool=pool, seed=1, decode=lambda ids: f"{ids[0]}}}", on_batch=batches.append,
    )  # fmt: skip
    assert summary.accuracy == 1.0
    assert [record.text for record in batches[0]] == ["0}", "10}"]


def test_sampled_evaluations_have_pass_at_k_timing_and_clusters(pool):
    items = [replace(item, meta={"cluster": "one" if number < 3 else "two"}) for number, item in enumerate(ITEMS)]
    batches = []
    summary = evaluate(
        ScriptedEngine(RIGHT), render, items, suite="s", params=SAMPLED, batch_size=4, pool=pool, seed=1, decode=decode,
        samples=3, on_batch=batches.append,
    )  # fmt: skip
    assert {record.cluster for batch in batches for record in batch} == {"one", "two"}
    assert summary.measures["clusters"] == 2
    assert list(summary.measures["pass_at_k"]) == ["1", "2", "3"]
    assert [summary.measures["pass_at_k"][k]["mean"] for k in "123"] == pytest.approx([0.6] * 3)
    assert summary.measures["verdicts"] == {"correct": 9, "wrong": 3, "no_answer": 3}
    assert summary.measures["tokens"] == {"total": 27, "longest": 2, "mean": 1.8}
    assert summary.measures["timing"]["sampling_s"] > 0


def test_stopped_at_once_and_empty_evaluations_have_no_numbers(pool):
    summary = run(ScriptedEngine(RIGHT), pool, should_stop=lambda: True)
    assert (summary.accuracy, summary.ci_low, summary.mean_tokens, summary.finished) == (None, None, None, False)


def test_what_cannot_be_meant_is_refused(pool):
    with pytest.raises(ValueError, match="must be 1"):
        run(ScriptedEngine(RIGHT), pool, samples=2)
    with pytest.raises(ValueError, match="at least 1"):
        run(ScriptedEngine(RIGHT), pool, batch_size=0)
    with pytest.raises(ValueError, match="two items with one id"):
        evaluate(
            ScriptedEngine(RIGHT),
            render,
            [ITEMS[0]] * 2,
            suite="s",
            params=GREEDY,
            batch_size=1,
            pool=pool,
            seed=0,
            decode=decode,
        )


def test_an_engine_that_loses_a_completion_is_an_error(pool):
    class Losing(ScriptedEngine):
        def generate(self, requests, params, *, logprobs):
            return super().generate(requests, params, logprobs=logprobs)[1:]

    with pytest.raises(RuntimeError, match="1 completions for 2 requests"):
        run(Losing(RIGHT), pool)


def test_records_that_could_not_be_judged_count_in_nothing_else():
    def record(position: int, verdict: str) -> Record:
        return Record(f"i{position}", None, position, 0, "h", (1,), "t", "g", None, verdict, "r", "length", 1, "v", 0.1)

    records = [record(0, "correct"), record(1, "infra_error"), record(2, "timeout")]
    summary = summarise(records, suite="s", greedy=True, samples=1, finished=True)
    assert (summary.accuracy, summary.infra_errors, summary.timeout_share, summary.n_items) == (0.5, 1, 0.5, 3)
    assert records[1].score is None
    assert summary.truncated_share == 1.0
