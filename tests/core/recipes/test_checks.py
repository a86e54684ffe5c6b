"""Fields that are each right but contradict each other."""

from typing import Any

import pytest

from core.recipes import TrainRecipe, parse_recipe

GROUPED = ["grpo", "rloo", "centered", "gspo", "dr_grpo", "dapo", {"name": "reinforce_plus_plus", "baseline": True}]


@pytest.mark.parametrize("algorithm", GROUPED)
def test_a_group_of_one_is_refused_where_the_algorithm_compares_a_group(
    algorithm: Any, train: dict[str, Any], problems: Any
) -> None:
    assert list(problems({**train, "algorithm": algorithm, "num_generations": 1})) == ["num_generations"]
    assert parse_recipe({**train, "algorithm": algorithm, "num_generations": 2})


def test_a_group_of_one_is_right_where_the_batch_is_the_baseline(train: dict[str, Any]) -> None:
    assert parse_recipe({**train, "algorithm": "reinforce_plus_plus", "num_generations": 1})


@pytest.mark.parametrize(
    ("step", "update", "right"), [(8, 8, True), (8, 4, True), (8, 3, False), (8, 16, False), (7, 1, True)]
)
def test_updates_divide_the_step(step: int, update: int, right: bool, train: dict[str, Any], problems: Any) -> None:
    raw = {**train, "prompts_per_step": step, "prompts_per_update": update}
    if right:
        recipe = parse_recipe(raw)
        assert isinstance(recipe, TrainRecipe)
        assert recipe.updates_per_step == step // update
    else:
        assert "1, 2, 4, 8" in problems(raw)["prompts_per_update"].hint


def test_the_whole_step_is_one_update_by_default(train: dict[str, Any]) -> None:
    recipe = parse_recipe(train)
    assert isinstance(recipe, TrainRecipe)
    assert (recipe.prompts_per_update, recipe.updates_per_step) == (8, 1)


def test_warmup_cannot_outlast_the_run(train: dict[str, Any], problems: Any) -> None:
    raw = {**train, "prompts_per_update": 2}  # 100 steps of 4 updates
    assert parse_recipe({**raw, "warmup_updates": 400})
    assert "at most 400" in problems({**raw, "warmup_updates": 401})["warmup_updates"].hint


def test_the_first_look_comes_within_the_run(train: dict[str, Any], problems: Any) -> None:
    assert parse_recipe({**train, "looks": {"every": 100}})
    assert list(problems({**train, "looks": {"every": 101}})) == ["looks.every"]
    assert list(problems({**train, "looks": 101})) == ["looks"]


def test_a_damage_stop_needs_looks(train: dict[str, Any], problems: Any) -> None:
    assert list(problems({**train, "damage_stop": "eprocess"})) == ["damage_stop"]
    assert list(problems({**train, "damage_stop": "eprocess", "looks": None})) == ["damage_stop"]


def test_stop_conditions_measured_at_looks_need_looks(train: dict[str, Any], problems: Any) -> None:
    assert set(problems({**train, "stop": {"target": 0.5, "patience": 3}})) == {"stop.target", "stop.patience"}
    assert parse_recipe({**train, "stop": {"max_hours": 1}})


def test_a_draw_is_no_larger_than_its_pool(train: dict[str, Any], problems: Any) -> None:
    raw = {**train, "data": {"dataset": "gsm8k", "holdout": 80}}
    assert parse_recipe({**raw, "looks": {"every": 10, "m": 80}})
    assert "at most 80" in problems({**raw, "looks": {"every": 10, "m": 81}})["looks.m"].hint
    first = {"every": 10, "suites": ["aime24", "holdout"], "m": 31}
    assert "at most 30" in problems({**raw, "looks": first})["looks.m"].hint
    assert parse_recipe({**raw, "looks": {**first, "suites": ["holdout", "aime24"]}})


def test_an_empty_holdout_cannot_be_asked(train: dict[str, Any], problems: Any) -> None:
    raw = {**train, "data": {"dataset": "gsm8k", "holdout": 0}}
    assert list(problems({**raw, "looks": {"every": 10}})) == ["looks.suites"]
    assert parse_recipe({**raw, "looks": {"every": 10, "suites": ["math500"]}})


def test_eprocess_needs_two_base_runs(train: dict[str, Any], problems: Any) -> None:
    raw = {**train, "looks": {"every": 10, "base_runs": 1}}
    assert list(problems({**raw, "damage_stop": "eprocess"})) == ["looks.base_runs"]
    assert parse_recipe({**raw, "damage_stop": "mcnemar_spending"})


@pytest.mark.parametrize(
    ("holdout", "m", "rule", "expected_m"),
    [
        (1000, None, "eprocess", 200),
        (2000, None, "eprocess", 200),
        (320, None, "eprocess", 64),
        (319, None, "mcnemar_spending", None),
        (80, 16, "mcnemar_spending", 16),
        (500, 100, "eprocess", 100),
        (499, 100, "mcnemar_spending", 100),
    ],
)
def test_the_rule_follows_from_the_pool(
    holdout: int, m: int | None, rule: str, expected_m: int | None, train: dict[str, Any]
) -> None:
    looks = {"every": 10} if m is None else {"every": 10, "m": m}
    recipe = parse_recipe(
        {**train, "data": {"dataset": "gsm8k", "holdout": holdout}, "looks": looks, "damage_stop": {}}
    )
    assert isinstance(recipe, TrainRecipe)
    assert recipe.damage_stop is not None
    assert recipe.looks is not None
    assert (recipe.damage_stop.rule, recipe.looks.m) == (rule, expected_m)


def test_a_named_eprocess_draws_a_fifth_of_a_small_pool(train: dict[str, Any]) -> None:
    raw = {**train, "data": {"dataset": "gsm8k", "holdout": 80}, "looks": 10, "damage_stop": "eprocess"}
    recipe = parse_recipe(raw)
    assert isinstance(recipe, TrainRecipe)
    assert recipe.looks is not None
    assert recipe.looks.m == 16


def test_the_holdout_leaves_enough_for_a_step(train: dict[str, Any], problems: Any) -> None:
    raw = {**train, "data": {"dataset": "gsm8k", "holdout": 7465}}  # 7473 items
    assert parse_recipe(raw)
    assert list(problems({**raw, "prompts_per_step": 9})) == ["data.holdout"]
    gym = {"dataset": "reasoning_gym:chain_sum", "holdout": 200, "options": {"size": 207}}
    assert "data.options.size" in problems({**train, "data": gym})["data.holdout"].hint


@pytest.mark.parametrize(("dataset", "split", "right"), [
    ("gsm8k", "test", True), ("math", "test", False), ("aime24", "test", True), ("aime24", "train", False),
    ("reasoning_gym:chain_sum", "train", True), ("file:mine.jsonl", "anything", True),
])  # fmt: skip
def test_a_split_is_one_the_data_has(
    dataset: str, split: str, right: bool, train: dict[str, Any], problems: Any
) -> None:
    raw = {**train, "data": {"dataset": dataset, "split": split, "holdout": 10}}
    if right:
        assert parse_recipe(raw)
    else:
        assert list(problems(raw)) == ["data.split"]


@pytest.mark.parametrize(("options", "place"), [
    ({"min_termz": 2}, "data.options.min_termz"), ({"size": 0}, "data.options.size"), ({"size": True}, "data.options.size"),
    ({"size": "500"}, "data.options.size"), ({"seed": -1}, "data.options.seed"),
])  # fmt: skip
def test_a_generators_options_are_checked_by_name(
    options: dict[str, Any], place: str, train: dict[str, Any], problems: Any
) -> None:
    assert list(problems({**train, "data": {"dataset": "reasoning_gym:chain_sum", "options": options}})) == [place]


def test_files_have_no_options(train: dict[str, Any], problems: Any) -> None:
    assert list(problems({**train, "data": {"dataset": "gsm8k", "options": {"size": 10}}})) == ["data.options.size"]


@pytest.mark.parametrize(
    "name", ["file:../x.jsonl", "file:/etc/x.jsonl", "file:a/b.jsonl", "file:x.csv", "file:", "file:.x.jsonl"]
)
def test_file_names_stay_in_the_items_folder(name: str, train: dict[str, Any], problems: Any) -> None:
    assert list(problems({**train, "data": {"dataset": name}})) == ["data.dataset"]


def weights(recipe: Any) -> dict[str, float]:
    return {name: term.weight for name, term in recipe.rewards.items()}


def test_the_default_reward_is_the_datas_own_verifier(train: dict[str, Any]) -> None:
    assert weights(parse_recipe(train)) == {"math": 1.0}
    gym = parse_recipe({**train, "data": "reasoning_gym:chain_sum", "rewards": {"auto": 0.5, "length": 0}})
    assert weights(gym) == {"reasoning_gym": 0.5, "length": 0.0}


@pytest.mark.parametrize(("dataset", "rewards", "place"), [
    ("gsm8k", {"reasoning_gym": 1}, "rewards.reasoning_gym"), ("gsm8k", {"code": 1}, "rewards.code"),
    ("mbpp", {"math": 1}, "rewards.math"), ("gsm8k", {"auto": 1, "math": 1}, "rewards.math"),
    ("reasoning_gym:chain_sum", {"math": 1}, "rewards.math"),
    ("gsm8k", {"math": 0, "length": 0}, "rewards"), ("reasoning_gym:chain_sum", {"instructions": 1}, "rewards.instructions"),
])  # fmt: skip
def test_a_reward_can_grade_its_data(
    dataset: str, rewards: dict[str, Any], place: str, train: dict[str, Any], problems: Any
) -> None:
    assert list(problems({**train, "data": {"dataset": dataset, "holdout": 10}, "rewards": rewards})) == [place]


def test_a_files_items_name_their_own_verifier(train: dict[str, Any], problems: Any) -> None:
    raw = {**train, "data": "file:mine.jsonl"}
    assert weights(parse_recipe(raw)) == {"auto": 1.0}
    assert weights(parse_recipe({**raw, "rewards": {"math": 1}})) == {"math": 1.0}
    assert list(problems({**raw, "rewards": {"math": 1, "code": 1}})) == ["rewards.code"]


def test_prompt_and_completion_fit_the_models_positions(train: dict[str, Any], problems: Any) -> None:
    raw = {**train, "model": "Qwen/Qwen2.5-Math-1.5B", "max_prompt_length": 1024}
    assert parse_recipe({**raw, "max_completion_length": 3072})
    assert "at most 3072" in problems({**raw, "max_completion_length": 3073})["max_completion_length"].hint


def test_regrounding_begins_within_the_run(train: dict[str, Any], problems: Any) -> None:
    assert parse_recipe({**train, "regrounding": {"m": 20, "n": 20, "after": 80}})
    assert list(problems({**train, "regrounding": {"m": 20, "n": 20, "after": 81}})) == ["regrounding.after"]


def test_momentum_belongs_to_sgd(train: dict[str, Any], problems: Any) -> None:
    assert parse_recipe({**train, "optimizer": {"name": "sgd", "momentum": 0.9}})
    assert list(problems({**train, "optimizer": {"name": "adamw", "momentum": 0.9}})) == ["optimizer.momentum"]


def test_several_greedy_samples_are_refused(evaluation: dict[str, Any], problems: Any) -> None:
    raw = {**evaluation, "suites": ["gsm8k", {"suite": "aime24", "n": 4, "temperature": 0}]}
    assert list(problems(raw)) == ["suites.1.temperature"]


def test_a_suite_is_not_asked_more_items_than_it_has(evaluation: dict[str, Any], problems: Any) -> None:
    assert parse_recipe({**evaluation, "suites": [{"suite": "aime24", "items": 30}]})
    assert list(problems({**evaluation, "suites": [{"suite": "aime24", "items": 31}]})) == ["suites.0.items"]


def test_sampled_suites_use_the_papers_values_by_default(evaluation: dict[str, Any]) -> None:
    recipe = parse_recipe({**evaluation, "suites": [{"suite": "aime24", "n": 4}, "gsm8k"]})
    assert [(s.n, s.temperature, s.top_p) for s in recipe.suites] == [(4, 0.6, 0.95), (1, 0.0, 1.0)]


def test_what_belongs_to_a_run_needs_a_run(evaluation: dict[str, Any], problems: Any) -> None:
    raw = {**evaluation, "suites": ["holdout"], "against": ["base"]}
    assert set(problems(raw)) == {"suites.0", "against.0"}
    assert parse_recipe({**raw, "model": "run:7f3a/best"})


def test_a_model_is_compared_with_each_other_once(evaluation: dict[str, Any], problems: Any) -> None:
    raw = {**evaluation, "model": "run:7f3a/best", "against": ["base", "run:7f3a/best", "base"]}
    assert set(problems(raw)) == {"against.1", "against.2"}


def test_an_evals_prompt_is_the_runs_own_unless_given(evaluation: dict[str, Any]) -> None:
    assert parse_recipe(evaluation).prompt is not None
    assert parse_recipe({**evaluation, "model": "run:7f3a/best"}).prompt is None


def test_analyses_take_only_their_own_options(analysis: dict[str, Any], problems: Any) -> None:
    compute = [{"name": "weight_linearity", "probe": {}}, {"name": "token_linearity", "sample": 10}]
    assert set(problems({**analysis, "compute": compute})) == {"compute.0.probe", "compute.1.sample"}


@pytest.mark.parametrize("task", ["countdown", "puzzle24"])
def test_tasks_whose_scorer_runs_the_answer_as_code_are_refused(
    task: str, train: dict[str, Any], problems: Any
) -> None:
    found = problems({**train, "data": f"reasoning_gym:{task}"})
    assert "code" in found["data"].message


def test_a_temperature_that_would_overflow_is_refused(train: dict[str, Any], problems: Any) -> None:
    assert "temperature" in problems({**train, "temperature": 1e-300})
    assert parse_recipe({**train, "temperature": 0.01})
