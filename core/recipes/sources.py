"""Names of data: catalogue names, `reasoning_gym:TASK`, `file:NAME.jsonl`, `hub:OWNER/NAME`, and `holdout` where
a run has one.

Checks the name, the split and the option names, and answers two questions the other blocks ask: which verifier grades the
items, and how many items there are where that is known. Opens no data file.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from core.recipes import hub_data
from core.recipes.catalogue import DATASETS, SUITES
from core.recipes.errors import allowed, did_you_mean, refuse
from core.recipes.gym_options import option_value_faults
from core.recipes.gym_tasks import PREFIX as GYM
from core.recipes.gym_tasks import UNSAFE_TASKS, GymMissingError, task_files, task_options

FILE = "file:"
HOLDOUT = "holdout"
DEFAULT_GYM_SIZE = 500  # reasoning-gym's own default
MAX_GYM_SIZE = 1_000_000

_FILE_NAME = re.compile(r"file:[A-Za-z0-9][A-Za-z0-9._-]{0,120}\.jsonl(?:\.gz)?")
_OTHER_FORMS = "reasoning_gym:TASK, file:NAME.jsonl (in the operator's items folder), hub:OWNER/NAME"


def check_dataset(name: str) -> str:
    """A name that can be trained on."""
    return _check_name(name, {**DATASETS, **SUITES}, "data set")


def check_suite(name: str) -> str:
    """A name that can be evaluated on; ``holdout`` is a run's own held-out items."""
    return name if name == HOLDOUT else _check_name(name, SUITES, "suite")


SuiteName = Annotated[str, Field(max_length=200), AfterValidator(check_suite)]


def _check_name(name: str, known: Mapping[str, object], noun: str) -> str:
    if name.startswith(GYM):
        return _check_task(name)
    if name.startswith(FILE):
        if not _FILE_NAME.fullmatch(name):
            raise refuse(
                f"{name!r} is not a file name", "write file:NAME.jsonl: a plain name inside the operator's items folder"
            )
        return name
    if name.startswith(hub_data.PREFIX):
        if not hub_data.is_name(name):
            raise refuse(f"{name!r} is not a data set's name", "write hub:OWNER/NAME, as on the Hugging Face hub")
        return name
    if name not in known:
        names = [HOLDOUT, *known] if noun == "suite" else list(known)
        raise refuse(
            f"the {noun} {name!r} is not known", f"{did_you_mean(name, names)}allowed: {allowed(names)}, {_OTHER_FORMS}"
        )
    return name


def _check_task(name: str) -> str:
    try:
        tasks = task_files()
    except GymMissingError as error:
        raise refuse(f"{name!r} cannot be used: {error}", "install reasoning-gym, or use another data set") from None
    task = name.removeprefix(GYM)
    if task not in tasks:
        raise refuse(
            f"reasoning-gym has no task {task!r}", f"{did_you_mean(task, tasks)}allowed: {allowed(sorted(tasks))}"
        )
    if task in UNSAFE_TASKS:
        raise refuse(
            f"the scorer of reasoning-gym's {task} evaluates the answer as code, so a model could run code",
            "use another task, such as reasoning_gym:chain_sum",
        )
    return name


def option_faults(name: str, options: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Options that the data ``name`` does not have: (option, message, hint) each."""
    if name.startswith(GYM):
        known = sorted(task_options(name.removeprefix(GYM)) | {"seed", "size"})
        faults = [
            fault for option, value in options.items() if (fault := _gym_option_fault(name, option, value, known))
        ]
        return faults or option_value_faults(name.removeprefix(GYM), options)
    if name.startswith(hub_data.PREFIX):
        return hub_data.option_faults(options)
    return [(option, f"{name} has no options", "remove it") for option in options]


def _gym_option_fault(name: str, option: str, value: Any, known: list[str]) -> tuple[str, str, str] | None:
    if option not in known:
        return option, f"{name} has no option {option!r}", f"{did_you_mean(option, known)}allowed: {allowed(known)}"
    low, high = {"size": (1, MAX_GYM_SIZE), "seed": (0, 2**31 - 1)}.get(option, (0, 0))
    if high and (not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high):
        return option, f"{option} is {value!r}", f"write a whole number from {low} to {high}"
    return None


def splits(name: str) -> tuple[str, ...] | None:
    """The splits of ``name`` as a data set, or None where any word is one (generators and files have no splits)."""
    if name in DATASETS:
        return tuple(DATASETS[name].splits)
    return (SUITES[name].split,) if name in SUITES else None


def dataset_items(name: str, split: str, options: Mapping[str, Any]) -> int | None:
    """How many items the data set has before the hold-out, where that is known in advance."""
    if name in DATASETS:
        facts = DATASETS[name].splits.get(split)
        return facts.items if facts else None
    if name.startswith(GYM):
        size = options.get("size", DEFAULT_GYM_SIZE)
        return size if isinstance(size, int) and not isinstance(size, bool) and size > 0 else None
    return suite_items(name)


def suite_items(name: str) -> int | None:
    """How many items the suite has, where that is known in advance."""
    return SUITES[name].items if name in SUITES else None


def suite_split(name: str) -> str:
    """The split a suite is asked on unless the recipe says otherwise."""
    return SUITES[name].split if name in SUITES else "test"


def verifier(name: str) -> str | None:
    """The verifier of the data's own items; None for a file, whose items say it themselves."""
    if name.startswith(GYM):
        return "reasoning_gym"
    facts = DATASETS.get(name) or SUITES.get(name)
    return facts.verifier if facts else None
