"""Options of generated tasks are checked when a recipe is posted, by the task's own rules and without importing it."""

import subprocess
import sys

import pytest

from core.recipes import RecipeError, parse_recipe
from core.recipes.gym_options import option_value_faults
from core.recipes.gym_tasks import UNSAFE_TASKS, task_files


@pytest.mark.parametrize(
    ("task", "options", "option", "hint"),
    [
        ("chain_sum", {"min_terms": "x"}, "min_terms", "a whole number"),
        ("chain_sum", {"min_terms": 2.5}, "min_terms", "a whole number"),
        ("chain_sum", {"min_terms": True}, "min_terms", "a whole number"),
        ("chain_sum", {"allow_negation": 1}, "allow_negation", "true or false"),
        ("chain_sum", {"min_terms": 5, "max_terms": 3}, "max_terms", "the defaults are"),
        ("chain_sum", {"min_terms": 0}, "min_terms", "defaults"),
        ("gcd", {"min_value": 9, "max_value": 3}, "max_value", "defaults"),
    ],
)
def test_wrong_values_name_the_option_and_say_what_to_write(task, options, option, hint):
    ((found, message, said),) = option_value_faults(task, options)
    assert (found, hint in said) == (option, True), (message, said)


@pytest.mark.parametrize(
    "options", [{}, {"min_terms": 2, "max_terms": 2}, {"allow_negation": True, "size": 5, "seed": 1}]
)
def test_right_values_pass(options):
    assert option_value_faults("chain_sum", options) == []


def test_a_recipe_with_wrong_options_is_refused_at_the_field(evaluation, train):
    data = {"dataset": "reasoning_gym:chain_sum", "options": {"min_terms": "x"}, "holdout": 20}
    with pytest.raises(RecipeError) as refused:
        parse_recipe({**train, "data": data})
    assert refused.value.param == "data.options.min_terms"
    suite = {"suite": "reasoning_gym:chain_sum", "options": {"min_terms": 4, "max_terms": 2}}
    with pytest.raises(RecipeError) as refused:
        parse_recipe({**evaluation, "suites": [suite]})
    assert refused.value.param == "suites.0.options.max_terms"


def test_the_defaults_of_every_task_pass_and_most_tasks_can_be_asked():
    from core.recipes.gym_options import _config

    tasks = set(task_files()) - UNSAFE_TASKS - {"composite"}
    assert all(option_value_faults(task, {}) == [] for task in tasks)
    assert sum(_config(task) is not None for task in tasks) > 0.85 * len(tasks)


def test_asking_imports_neither_the_package_nor_numpy():
    code = (
        "import sys\nfrom core.recipes.gym_options import option_value_faults\n"
        "assert option_value_faults('chain_sum', {'min_terms': 'x'})\n"
        "print([name for name in ('reasoning_gym', 'numpy', 'sympy', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
