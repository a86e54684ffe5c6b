"""Grader for instruction items (IFEval, IFBench): the package if-verifiable's checks, made repeatable and complete.

The verdict is prompt-level strict accuracy: correct when every instruction is followed by the completion as it stands (behind
the last ``</think>``). The loose reading and the share of instructions are in the verdict's details. The package skips
instructions that it does not know, so they are refused when items are read (:func:`faults`); its language detection and its
default arguments draw at random, so both are seeded for each answer.
"""

import hashlib
import importlib.util
import random
import sys
import types
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from core.tasks.items import Item
from core.tasks.verifiers.boxed import after_thinking
from core.tasks.verifiers.verdict import Judgement, Outcome

VERSION = f"instructions/1+{version('if-verifiable')}+nltk{version('nltk')}"
KINDS = ("ifeval", "ifbench")

_PACKAGE = "if_verifiable"
_MISSING = "the language data {} is not installed; put it into a folder named by NLTK_DATA (python -m nltk.downloader)"


def warm_up() -> None:
    """Import the checks and load what they need."""
    import langdetect

    for kind in KINDS:
        registry(kind)
    langdetect.detect("This sentence loads the language profiles.")


def grade(item: Item, text: str) -> Judgement:
    """Judge a completion against ``item.tests``: its instruction ids and their arguments."""
    body = after_thinking(text).strip()
    if not body:
        return Judgement(Outcome.NO_ANSWER, "the completion is empty")
    tests = item.tests or {}
    _seed(item)
    common = _module("common")
    try:
        results, _scores = common.evaluate_instructions(
            body, list(tests["instruction_id_list"]), [dict(one) for one in tests["kwargs"]], item.prompt,
            registry(tests["type"]),
        )  # fmt: skip
    except LookupError as problem:
        name = str(problem).partition("Resource")[2].split()[:1]
        return Judgement(Outcome.INFRA_ERROR, _MISSING.format(name[0].strip("\x1b[0;93m") if name else problem))
    if len(results) != len(tests["instruction_id_list"]):
        return Judgement(Outcome.INFRA_ERROR, "if-verifiable left instructions of this item out")
    strict, loose = [one.strict_pass for one in results], [one.loose_pass for one in results]
    details = {
        "strict": float(all(strict)),
        "loose": float(all(loose)),
        "instructions_strict": sum(strict) / len(results),
        "instructions_loose": sum(loose) / len(results),
    }
    missed = ", ".join(one.instruction_id for one in results if not one.strict_pass)
    reason = f"{sum(strict)} of {len(results)} instructions followed ({sum(loose)} in the loose reading)"
    outcome = Outcome.WRONG if missed else Outcome.CORRECT
    return Judgement(outcome, f"{reason}, missed: {missed}" if missed else reason, None, details)


def faults(tests: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(field, what is wrong) for everything in ``tests`` that could not be graded as it says."""
    ids, kwargs = tests.get("instruction_id_list"), tests.get("kwargs")
    if not isinstance(ids, list) or not ids or not all(isinstance(one, str) for one in ids):
        yield "tests.instruction_id_list", "must be a list of at least one instruction id"
        return
    if not isinstance(kwargs, list) or len(kwargs) != len(ids) or not all(isinstance(one, dict) for one in kwargs):
        yield "tests.kwargs", f"must be a list of {len(ids)} objects, one for each instruction"
        return
    known = registry(tests["type"])
    for place, (identifier, arguments) in enumerate(zip(ids, kwargs, strict=True)):
        if identifier not in known:
            yield (
                f"tests.instruction_id_list[{place}]",
                f"{tests['type']} has no instruction {identifier!r}; allowed: {', '.join(sorted(known))}",
            )
            continue
        try:
            given = {name: value for name, value in arguments.items() if value is not None}
            known[identifier](identifier).build_description(**given)
        except Exception as problem:  # noqa: BLE001 - the package raises whatever its arguments run into
            yield f"tests.kwargs[{place}]", f"{identifier} does not take {arguments}: {problem}"


@cache
def registry(kind: str) -> dict[str, Any]:
    """Instruction id to checker class of one benchmark."""
    _language_data()
    found: dict[str, Any] = _module(f"{kind}.instructions_registry").INSTRUCTION_DICT
    return found


def _seed(item: Item) -> None:
    """The same draws for the same item, whatever was graded before."""
    import langdetect

    langdetect.DetectorFactory.seed = 0  # every detection starts a generator of its own from it
    random.seed(int.from_bytes(hashlib.sha256(item.id.encode()).digest()[:8]))


def _module(name: str) -> types.ModuleType:
    """A module of the package without the package's own ``__init__``, which imports datasets, pandas and the hub."""
    if _PACKAGE not in sys.modules:
        spec = importlib.util.find_spec(_PACKAGE)
        if spec is None or spec.submodule_search_locations is None:
            raise ModuleNotFoundError("the package if-verifiable is not installed")
        bare = types.ModuleType(_PACKAGE)
        bare.__path__ = list(spec.submodule_search_locations)
        sys.modules[_PACKAGE] = bare
    return importlib.import_module(f"{_PACKAGE}.{name}")


def _language_data() -> None:
    """Point nltk to installed data (the operator's ``NLTK_DATA`` first) and keep the package from downloading any."""
    import nltk

    folder = importlib.util.find_spec("llama_index")
    for place in (folder.submodule_search_locations or ()) if folder else ():
        carried = str(Path(place) / "core" / "_static" / "nltk_cache")
        if carried not in nltk.data.path:
            nltk.data.path.append(carried)
    nltk.download = _no_download


def _no_download(*_names: object, **_options: object) -> bool:
    return False
