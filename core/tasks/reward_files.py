"""Own reward functions: files in the operator's reward folder, found by plain name, hashed, and read without being run.

The recipe names ``file:NAME.py:FUNCTION``. What is checked here needs no execution, so the api may ask; the function runs in
processes of its own (`core.tasks.reward_pool`).
"""

import ast
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from core.recipes.errors import Problem
from core.recipes.rewards import RewardTerm, own_function
from core.syntax import syntax_tree

VARIABLE = "DRIFTLINE_REWARDS"
MAX_BYTES = 1 << 20


class RewardFileError(ValueError):
    """A reward file cannot be used; the message says why and ``hint`` how to mend it."""

    def __init__(self, message: str, hint: str) -> None:
        self.hint = hint
        super().__init__(message)


@dataclass(frozen=True)
class RewardFunction:
    """A function of a reward file, pinned to the file's content."""

    path: Path
    function: str
    sha256: str


def find_function(term: str, folder: Path | None) -> RewardFunction:
    """Return the function that ``term`` names; raises :class:`RewardFileError`. The file is parsed, never executed."""
    names = own_function(term)
    if names is None:
        raise ValueError(f"{term!r} names no own function")
    if folder is None:
        raise RewardFileError("this service has no reward folder", f"the operator sets {VARIABLE} to a folder")
    file, function = names
    path = (folder / file).resolve()
    if path.parent != folder.resolve() or not path.is_file():
        there = ", ".join(sorted(one.name for one in folder.glob("*.py"))[:8]) or "no Python file"
        raise RewardFileError(f"there is no file {file} in the reward folder", f"it holds {there}")
    source = path.read_bytes()
    if len(source) > MAX_BYTES:
        raise RewardFileError(f"{file} has {len(source)} bytes", f"at most {MAX_BYTES}")
    defined = _functions(source, file)
    if function not in defined:
        raise RewardFileError(
            f"{file} defines no function {function}",
            f"it defines {', '.join(sorted(defined)) or 'none'}; write `def {function}(prompt, completion, item, ...)`",
        )
    return RewardFunction(path, function, hashlib.sha256(source).hexdigest())


def own_functions(terms: Mapping[str, RewardTerm], folder: Path | None) -> dict[str, RewardFunction]:
    """Return the own functions among ``terms`` by term.

    Raises :class:`RewardFileError` naming the term, also when a file is no longer the one that the recipe was accepted with.
    """
    found: dict[str, RewardFunction] = {}
    for term, spec in terms.items():
        if own_function(term) is None:
            continue
        function = find_function(term, folder)
        if spec.sha256 is not None and spec.sha256 != function.sha256:
            raise RewardFileError(
                f"{function.path.name} is not the file that the recipe names by its hash ({spec.sha256[:12]}...)",
                f"put it back as it was, or set sha256 of the term to {function.sha256} in a new recipe",
            )
        found[term] = function
    return found


def pinned(terms: Mapping[str, RewardTerm], folder: Path | None) -> tuple[dict[str, RewardTerm], list[Problem]]:
    """Return the terms with the hashes of their files written down, and what is wrong with them."""
    done, problems = dict(terms), []
    for term, spec in terms.items():
        try:
            for function in own_functions({term: spec}, folder).values():
                done[term] = spec.model_copy(update={"sha256": function.sha256})
        except RewardFileError as problem:
            problems.append(Problem(f"rewards.{term}", str(problem), problem.hint))
    return done, problems


def _functions(source: bytes, file: str) -> set[str]:
    """Names of the plain functions at the top of the file."""
    try:
        tree = syntax_tree(source, filename=file)
    except (SyntaxError, ValueError, RecursionError) as problem:
        raise RewardFileError(f"{file} is not valid Python: {problem}", "correct the file") from None
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
