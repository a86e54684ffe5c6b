"""Names and option names of the installed reasoning-gym tasks, read from its source files without importing it.

Importing the package takes seconds and pulls in numpy and sympy; a recipe only needs to know whether a task exists and which
options its generator has. The answer is read once per process.
"""

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from core.syntax import syntax_tree

PREFIX = "reasoning_gym:"

UNSAFE_TASKS = frozenset(
    {
        "binary_matrix",
        "countdown",
        "intermediate_integration",
        "n_queens",
        "number_sorting",
        "polynomial_multiplication",
        "puzzle24",
        "simple_integration",
        "spiral_matrix",
        "string_insertion",
    }
)
"""Tasks whose scorer passes the answer to ``eval`` or to SymPy's ``parse_expr``: a model could run code."""


class GymMissingError(RuntimeError):
    """The package reasoning-gym is not installed."""


@cache
def task_files() -> dict[str, Path]:
    """Each registered task and the file that defines it; raises `GymMissingError`."""
    spec = find_spec("reasoning_gym")
    if spec is None or spec.origin is None:
        raise GymMissingError("the package reasoning-gym is not installed")
    tasks: dict[str, Path] = {}
    for path in sorted(Path(spec.origin).parent.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "register_dataset(" in text:
            tasks.update(dict.fromkeys(registered(syntax_tree(text)), path))
    return tasks


@cache
def task_options(task: str) -> frozenset[str]:
    """Names of the generator options of ``task``: the fields of its configuration class."""
    tree = syntax_tree(task_files()[task].read_text(encoding="utf-8"))
    config = registered(tree)[task]
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == config:
            names = (item.target for item in node.body if isinstance(item, ast.AnnAssign))
            return frozenset(target.id for target in names if isinstance(target, ast.Name))
    return frozenset()


def registered(tree: ast.Module) -> dict[str, str]:
    """Task name -> configuration class of every ``register_dataset(name, dataset, config, ...)`` at module level."""
    constants = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    found: dict[str, str] = {}
    for node in tree.body:
        call = node.value if isinstance(node, ast.Expr) else None
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id != "register_dataset":
            continue
        name = (
            call.args[0].value if isinstance(call.args[0], ast.Constant) else constants.get(ast.unparse(call.args[0]))
        )
        if isinstance(name, str):
            found[name] = ast.unparse(call.args[2])
    return found
