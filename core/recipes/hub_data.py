"""Data sets of the Hugging Face hub by mapping: the name ``hub:OWNER/NAME`` and which columns are what.

Names and options only; reading is :mod:`core.tasks.hub`'s.
"""

import re
from collections.abc import Mapping
from typing import Any

PREFIX = "hub:"
OPTIONS: dict[str, str] = {
    "prompt": "the column with the question",
    "answer": "the column with the reference answer (graded as mathematics)",
    "answer_after": "a marker: the answer is what follows its last occurrence in the column (GSM8K: ####)",
    "tests": "the column with the item's tests: an object, JSON text, or a list of Python assertions",
    "id": "the column with the items' ids (else the row's number)",
    "config": "the data set's configuration",
    "revision": "a commit or tag of the data set",
}
_NAME = re.compile(r"hub:[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")


def is_name(name: str) -> bool:
    """Whether the name is well formed."""
    return _NAME.fullmatch(name) is not None


def option_faults(options: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(option, message, hint) for each option that is unknown, no string, or missing."""
    listed = ", ".join(OPTIONS)
    faults = [(name, f"there is no option {name!r}", f"allowed: {listed}") for name in options if name not in OPTIONS]
    faults += [
        (name, f"{name} is {value!r}", "write a string: " + OPTIONS[name])
        for name, value in options.items()
        if name in OPTIONS and (not isinstance(value, str) or not value)
    ]
    if "prompt" not in options:
        faults.append(("prompt", "the column of the prompt is not named", "set it to " + OPTIONS["prompt"]))
    if ("answer" in options) == ("tests" in options):
        faults.append(("answer", "exactly one of answer and tests must be named", OPTIONS["answer"]))
    if "answer_after" in options and "answer" not in options:
        faults.append(("answer_after", "answer_after says nothing without answer", "name the column answer"))
    return faults
