"""The pass-rate filter: measured once on the start model, cached by content, the same items in every attempt."""

from typing import Any

import pytest

from core.engines.base import Completion
from core.engines.transformers_engine import TransformersEngine
from core.jobs import UserError
from core.recipes import parse_recipe
from core.store import events, pass_rates, prespecs, rollouts, runs
from core.tasks.pool import VerifierPool
from core.train import pass_rate
from core.train.loop import run_training
from tests.core.train.service import RECIPE, Killed, ScriptedControl, Service

RATES = {"low": 0.2, "high": 0.6, "samples": 4}
DATA = {**RECIPE["data"], "holdout": 0, "options": {**RECIPE["data"]["options"], "size": 30}}
CHANGES: dict[str, Any] = {"looks": None, "damage_stop": None, "max_steps": 2, "data": {**DATA, "pass_rate": RATES}}


class Knows:
    """Makes the start model right on item number k exactly k modulo 5 times out of the samples of the measurement.

    Training rollouts, which ask several samples of fewer prompts at once, are the real engine's.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[int] = []
        self.measured = pass_rate._measured

        def scripted(recipe: Any, prepared: Any, asker: Any, wanted: Any, items: Any) -> Any:
            for item in items:
                self.asked.append(number_of(item.id))
                yield item, (min(number_of(item.id) % 5, 4), 4)

        monkeypatch.setattr(pass_rate, "_measured", scripted)


def number_of(item_id: str) -> int:
    return int("".join(char for char in item_id if char.isdigit()) or 0)


def event_of(service: Service, run_id: str) -> dict[str, Any]:
    with service.db.read() as session:
        (payload,) = events.payloads(session, run_id, "pass_rate")
    return payload


def trained_on(service: Service, run_id: str) -> set[str]:
    with service.db.read() as session:
        return {row.item_id for row in rollouts.page(session, run_id, limit=200).items}


def test_items_outside_the_range_are_dropped_counted_and_told(
    service: Service, pool: VerifierPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    knows = Knows(monkeypatch)
    run_id = service.post(**CHANGES)
    assert run_training(service.attempt(run_id), pool).state == "succeeded"
    told = event_of(service, run_id)
    expected = {k: sum(number % 5 == k for number in knows.asked) for k in range(5)}
    assert told["items"] == len(knows.asked) == sum(expected.values())
    assert told["kept"] == expected[1] + expected[2]
    assert (told["too_hard"], told["too_easy"]) == (expected[0], expected[3] + expected[4])
    assert [one["rate"] for one in told["histogram"]] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert {number_of(item) % 5 for item in trained_on(service, run_id)} <= {1, 2}
    with service.db.read() as session:
        run = runs.get(session, run_id)
        amendments = prespecs.get(session, run.prespecification_id).amendments
    assert amendments[0]["payload"]["data"]["training"]["items"] == told["kept"]


def test_a_killed_run_and_a_second_run_measure_nothing_again(
    service: Service, pool: VerifierPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    knows = Knows(monkeypatch)
    run_id = service.post(**CHANGES)

    def die(question: int) -> None:
        if question == 4:
            raise Killed

    first = service.attempt(run_id, ScriptedControl(die))
    with pytest.raises(Killed):
        run_training(first, pool)
    service.lost(first)
    begun = list(knows.asked)
    second = service.attempt(run_id)
    assert run_training(second, pool).state == "succeeded"
    assert begun
    assert len(knows.asked) == len(set(knows.asked))
    service.finish(second, run_training_outcome())
    again = service.post(**CHANGES)
    assert run_training(service.attempt(again), pool).state == "succeeded"
    assert len(knows.asked) == len(set(knows.asked))
    assert event_of(service, again)["known_before"] == len(knows.asked)
    assert trained_on(service, again) == trained_on(service, run_id)


def run_training_outcome() -> Any:
    from core.jobs import Outcome

    return Outcome("succeeded", "test")


def test_a_pause_while_measuring_keeps_what_was_measured(
    service: Service, pool: VerifierPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    knows = Knows(monkeypatch)
    run_id = service.post(**CHANGES)
    context = service.attempt(run_id, ScriptedControl(lambda question: "pause" if question >= 3 else None))
    assert run_training(context, pool).state == "paused"
    assert 0 < len(knows.asked) < 30


def test_too_few_items_are_an_error_that_says_why(
    service: Service, pool: VerifierPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    Knows(monkeypatch)
    narrow = {**DATA, "options": {**DATA["options"], "size": 5}, "pass_rate": {**RATES, "high": 0.25}}
    run_id = service.post(**{**CHANGES, "data": narrow})
    with pytest.raises(UserError, match=r"keeps \d of \d training items.*at least 4 are needed") as caught:
        run_training(service.attempt(run_id), pool)
    assert caught.value.code == "too_few_items"


def test_the_real_engine_is_asked_as_the_run_samples(
    service: Service, pool: VerifierPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[int, Any]] = []
    generate = TransformersEngine.generate

    def counted(self: TransformersEngine, requests: Any, params: Any, **more: Any) -> list[Completion]:
        calls.append((len(requests), params))
        return generate(self, requests, params, **more)

    monkeypatch.setattr(TransformersEngine, "generate", counted)
    everything = {**DATA, "options": {**DATA["options"], "size": 7}, "pass_rate": {"low": 0, "high": 1, "samples": 4}}
    run_id = service.post(**{**CHANGES, "max_steps": 1, "data": everything})
    assert run_training(service.attempt(run_id), pool).state == "succeeded"
    told = event_of(service, run_id)
    assert told["kept"] == told["items"]
    assert sum(count for count, _ in calls) == told["items"] * 4 + 3 * 4
    assert {params.temperature for _, params in calls} == {1.0}
    assert {params.max_tokens for _, params in calls} == {8}
    assert max(count for count, _ in calls) <= 3 * 4


def test_the_key_changes_with_what_a_rate_depends_on() -> None:
    from core.engines.base import SamplingParams
    from core.train.pass_rate import Asker, _settings

    recipe = parse_recipe({**RECIPE, **CHANGES}, known_models=["tiny"])

    def key(weights: str = "w", **params: Any) -> dict[str, Any]:
        asker = Asker(None, SamplingParams(**params), str, None, weights)  # type: ignore[arg-type]
        return _settings(recipe, asker, "math", recipe.data.pass_rate)  # type: ignore[union-attr]

    assert key() == key()
    assert (
        len({str(one) for one in (key(), key("other"), key(temperature=0.5), key(max_tokens=9), key(stop=("x",)))}) == 5
    )
    assert key()["verifier_version"]


def test_stored_rates_are_never_overwritten(service: Service) -> None:
    run_id = service.post()
    context = service.attempt(run_id)
    for counts in ((1, 4), (3, 4)):
        with service.db.fenced(context.fence) as session:
            pass_rates.put(session, context.fence, "k" * 64, {"a": 1}, {"i" * 64: counts})
    with service.db.read() as session:
        assert pass_rates.known(session, "k" * 64, ["i" * 64, "j" * 64]) == {"i" * 64: (1, 4)}
