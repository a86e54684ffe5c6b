"""Attempts that end between what a step does and what follows it, forks, and what retention must leave alone."""

from dataclasses import replace
from typing import Any

import pytest

from core.damage.eprocess import EProcess
from core.jobs import UserError
from core.prespec.document import draw_key
from core.recipes import family_hash, parse_recipe, recipe_hash, resolved
from core.store import checkpoints, looks, metrics, prespecs, rollouts, runs
from core.store.states import RunState
from core.tasks.pool import VerifierPool
from core.train import prespecify
from core.train.loop import run_training
from tests.core.train.service import RECIPE, TINY, Killed, ScriptedControl, Service

QUICK: dict[str, Any] = {"looks": None, "damage_stop": None}


def fork(service: Service, parent: str, step: int, **changes: Any) -> str:
    """Store a child that begins at a checkpoint of ``parent``, more urgent than everything before it."""
    submitted = RECIPE | changes | {"model": f"run:{parent}/step-{step}"}
    recipe = parse_recipe(submitted, known_models=[TINY])
    with service.db.write() as session:
        run = runs.create(
            session,
            recipe=resolved(recipe),
            submitted=submitted,
            recipe_hash=recipe_hash(recipe),
            family_hash=family_hash(recipe),
            model=recipe.model,
            name="fork",
            kind="train",
            priority=900,
            parent_id=parent,
            parent_step=step,
        )
    return run.id


def trained(service: Service, pool: VerifierPool, **changes: Any) -> str:
    run_id = service.post(**changes)
    context = service.attempt(run_id)
    service.finish(context, run_training(context, pool))
    return run_id


def steps_with_reward(service: Service, run_id: str) -> list[int]:
    with service.db.read() as session:
        return [point.step for point in metrics.curves(session, run_id, keys=["reward"])["reward"].points]


def test_a_damage_stop_survives_a_crash_between_its_look_and_the_outcome(service, pool, monkeypatch) -> None:
    original = EProcess.look
    monkeypatch.setattr(EProcess, "look", lambda *given: replace(original(*given), decided=True))
    run_id = service.post(save={"every": 3}, damage_stop={"rule": "eprocess", "action": "stop"})
    first = service.attempt(run_id)
    assert run_training(first, pool).state == "damage_stopped"
    service.lost(first)
    assert run_training(service.attempt(run_id), pool).state == "damage_stopped"
    assert steps_with_reward(service, run_id) == [1, 2, 3]


def test_the_runs_own_end_survives_a_crash_before_the_outcome(service, pool) -> None:
    run_id = service.post(looks={"every": 1, "m": 10, "base_runs": 2}, save={"every": 1}, stop={"patience": 1})
    first = service.attempt(run_id)
    ended = run_training(first, pool)
    assert "no better look" in ended.reason
    taken = steps_with_reward(service, run_id)
    service.lost(first)
    assert run_training(service.attempt(run_id), pool) == ended
    assert steps_with_reward(service, run_id) == taken


def test_a_request_is_heard_before_another_step_is_sampled(service, pool) -> None:
    run_id = service.post(**QUICK)
    outcome = run_training(service.attempt(run_id, ScriptedControl(lambda _: "pause")), pool)
    assert outcome.state == "paused"
    assert steps_with_reward(service, run_id) == []


def test_a_run_that_took_its_last_step_is_done_whatever_was_asked(service, pool) -> None:
    run_id = service.post(**QUICK, max_steps=1)
    control = ScriptedControl(lambda question: "drain" if question > 2 else None)
    assert run_training(service.attempt(run_id, control), pool).state == "succeeded"


def test_a_folder_that_got_no_row_is_removed_by_the_next_attempt(service, pool, monkeypatch) -> None:
    run_id = service.post(**QUICK, max_steps=2)
    add = checkpoints.add

    def die(session: Any, fence: Any, *, step: int, **facts: Any) -> Any:
        if step == 2:
            raise Killed
        return add(session, fence, step=step, **facts)

    context = service.attempt(run_id)
    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "add", die)
        with pytest.raises(Killed):
            run_training(context, pool)
    folders = service.settings.run_dir(run_id) / "checkpoints"
    assert (folders / "attempt-1-step-2").is_dir()
    service.lost(context)
    run_training(service.attempt(run_id), pool)
    assert sorted(path.name for path in folders.iterdir()) == ["attempt-1-step-0", "attempt-2-step-2"]


def test_weights_that_give_no_finite_logits_are_the_recipes_fault(service, pool) -> None:
    run_id = service.post(**QUICK, learning_rate=1e-3, max_steps=2)
    context = service.attempt(run_id)
    broken = pytest.MonkeyPatch()

    def ruin(question: int) -> None:
        if question == 3:
            broken.setattr("torch.log_softmax", lambda values, dim: values.float() * float("nan"))

    try:
        with pytest.raises(UserError, match="learning_rate") as refused:
            run_training(replace(context, control=ScriptedControl(ruin)), pool)
    finally:
        broken.undo()
    assert refused.value.code == "nonfinite_logits"


@pytest.mark.parametrize("part", ["suite holdout", "training", "held-out"])
def test_data_that_changed_between_attempts_is_refused_and_named(service, pool, part) -> None:
    context = service.attempt(service.post())
    items = a_few_items(context.recipe)
    other = items.subset(list(reversed(items.items)), name=items.name, split=items.split)

    def load(changed: str = "") -> None:
        prespecify.load_or_freeze(
            context,
            context.recipe,
            {"holdout": other if changed == "suite holdout" else items},
            train=other if changed == "training" else items,
            heldout=other if changed == "held-out" else items,
        )

    load()
    load()
    with pytest.raises(UserError, match=f"the items of {part} are not") as refused:
        load(part)
    assert refused.value.code == "data_changed"


def test_a_pool_of_another_size_than_the_frozen_rules_is_refused_at_the_first_attempt(service, pool) -> None:
    run_id = service.post()
    context = service.attempt(run_id)
    items = a_few_items(context.recipe)
    with service.db.write() as session:
        prespecify.freeze_automatic(session, runs.get(session, run_id), context.recipe, 21)
    with pytest.raises(UserError, match="a pool of 21 items, and suite holdout has 20 now"):
        prespecify.load_or_freeze(context, context.recipe, {"holdout": items}, train=items, heldout=items)


def a_few_items(recipe: Any) -> Any:
    from core.tasks.sources import load_items

    return load_items(recipe.data.dataset, "train", {**recipe.data.options, "size": 20}, None, seed=1)


def test_a_forks_rates_and_looks_are_counted_from_its_own_recipe(service, pool) -> None:
    parent = trained(service, pool, **QUICK, prompts_per_update=1, max_steps=4)
    child = fork(
        service, parent, 2, prompts_per_update=3, max_steps=4, lr_schedule="linear", looks={"every": 2, "m": 10}
    )
    outcome = run_training(service.attempt(child), pool)
    assert outcome.state == "succeeded"
    with service.db.read() as session:
        rates = metrics.curves(session, child, keys=["lr"])["lr"].points
        asked = [(row.step, row.number) for row in looks.list_(session, child)]
        frozen = prespecs.get(session, runs.get(session, child).prespecification_id)
    base = RECIPE["learning_rate"]
    assert [(point.step, pytest.approx(point.value)) for point in rates] == [(3, base * 0.5), (4, base * 0.25)]
    assert asked == [(4, 1)]
    assert frozen.document["analysis"]["rule"]["looks"] == 1
    assert draw_key(frozen.hash)


def test_a_fork_inherits_neither_hours_nor_skipped_updates(service, pool) -> None:
    parent = trained(service, pool, **QUICK, learning_rate=100.0, nonfinite_limit=1)
    with service.db.read() as session:
        last = checkpoints.latest(session, parent)
    child = fork(service, parent, last.step, **QUICK, max_steps=last.step + 1, nonfinite_limit=2, learning_rate=0.0)
    outcome = run_training(service.attempt(child), pool)
    assert outcome.error is None or outcome.error["code"] != "nonfinite_gradients"


@pytest.mark.parametrize(
    ("changes", "code"), [({"max_steps": 2}, "nothing_left"), ({"optimizer": "sgd"}, "optimizer_differs")]
)
def test_a_fork_that_cannot_go_on_says_why(service, pool, changes, code) -> None:
    parent = trained(service, pool, **QUICK, max_steps=2)
    context = service.attempt(fork(service, parent, 2, **QUICK, **({"max_steps": 3} | changes)))
    with pytest.raises(UserError) as refused:
        run_training(context, pool)
    assert refused.value.code == code


def test_retention_spares_what_a_waiting_run_names(service, pool) -> None:
    parent = service.post(**QUICK, save={"every": 1, "keep": 1}, max_steps=4)
    context = service.attempt(parent)

    def wait_for_step_1(question: int) -> None:
        with service.db.read() as session:
            there = checkpoints.at_step(session, parent, 1)
            waiting = runs.children(session, parent)
        if there is not None and not waiting:
            fork(service, parent, 1, **QUICK)

    outcome = run_training(replace(context, control=ScriptedControl(wait_for_step_1)), pool)
    service.finish(context, outcome)
    with service.db.read() as session:
        assert [row.step for row in checkpoints.list_(session, parent)] == [0, 1, 4]
        [child] = runs.children(session, parent)
        assert checkpoints.steps_in_use(session, parent) == {1}
    with service.db.write() as session:
        runs.request_cancel(session, child.id)
        assert runs.get(session, child.id).state == RunState.CANCELLED
        assert checkpoints.steps_in_use(session, parent) == set()


def test_a_reward_term_of_another_verifier_is_found_before_the_base_look(service, pool) -> None:
    from core.tasks.items import ItemError
    from core.tasks.rewards import check_terms

    items = a_few_items(service.attempt(service.post()).recipe)
    check_terms({"auto": 1.0, "random": 0.5, items.verifier: 1.0}, items)
    with pytest.raises(ItemError, match="math"):
        check_terms({"math": 1.0}, items)


def test_samples_masked_for_their_length_count_in_no_statistic(service, pool) -> None:
    algorithm = {"name": "reinforce_plus_plus", "mask_truncated": True}
    run_id = trained(
        service, pool, **QUICK, algorithm=algorithm, max_steps=1, num_generations=24, max_completion_length=24
    )
    with service.db.read() as session:
        samples = rollouts.page(session, run_id, limit=100).items
    kept = [row for row in samples if row.finish_reason == "stop"]
    assert len({row.reward for row in kept}) > 1
    assert len(kept) < len(samples)
    assert sum(row.advantage * row.n_tokens for row in kept) == pytest.approx(0.0, abs=1e-9)
