"""Whether options fit a reasoning-gym task, found without importing the package, which takes seconds.

The task's configuration class is taken out of its source file with what it needs of the same file and of the standard
library, and its own ``validate`` is asked. Where that cannot be done (a few tasks need other packages for it) nothing is found
here, and the generator itself says what is wrong when the run begins.
"""

import ast
import sys
import types
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from core.recipes.gym_tasks import registered, task_files
from core.syntax import syntax_tree

_PLAIN: dict[type, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}


def option_value_faults(task: str, options: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(option, message, hint) for values of a wrong type, else for what the task's own validation refuses."""
    config = _config(task)
    if config is None:
        return []
    hints = _hints(config)
    faults = [
        (name, f"{name} is {value!r}", f"write {kind}")
        for name, value in options.items()
        if name in hints and (kind := _expected(hints[name], value)) is not None
    ]
    return faults or _refused(config, options)


def _refused(config: type, options: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    try:
        config(**options).validate()
    except (AssertionError, ValueError) as problem:
        text = str(problem).strip() or "the task's own validation refuses these values"
        # The validation names fields in its sentence; the fault is at the first of them that was given.
        named = sorted((text.find(name), name) for name in options if name in text)
        option = named[0][1] if named else next(iter(options), "")
        return [(option, f"{option} is {options[option]!r}: {text}", _defaults(config, text))] if option else []
    except Exception:  # noqa: BLE001 - validation code of the package that needs more than this
        return []
    return []


def _defaults(config: type, text: str) -> str:
    """The default values of the fields that a message names, as a hint."""
    fields = getattr(config, "__dataclass_fields__", {})
    known = {
        name: field.default for name, field in fields.items() if name in text and isinstance(field.default, int | float)
    }
    listed = ", ".join(f"{name} {value}" for name, value in known.items())
    return f"the defaults are {listed}" if listed else "leave it out to have the default"


def _expected(hint: Any, value: Any) -> str | None:
    """What the value should be, or None where it fits or the annotation says nothing that JSON could break."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in {Union, types.UnionType}:
        wanted = [_expected(one, value) for one in arguments]
        return None if None in wanted else " or ".join(dict.fromkeys(one for one in wanted if one))
    if origin is Literal:
        return None if value in arguments else "one of " + ", ".join(map(str, arguments))
    if hint is type(None):
        return None if value is None else "null"
    if hint in _PLAIN:
        allowed = (int, float) if hint is float else hint
        fits = isinstance(value, allowed) and (hint is bool or not isinstance(value, bool))
        return None if fits else _PLAIN[hint]
    if origin in {list, tuple, set} and not isinstance(value, list):
        return "a list"
    return "an object" if origin is dict and not isinstance(value, dict) else None


def _hints(config: type) -> dict[str, Any]:
    try:
        return get_type_hints(config)
    except (NameError, TypeError, AttributeError):
        return {}


@cache
def _config(task: str) -> type | None:
    """The task's configuration class, or None where it cannot be built from its file alone."""
    path = task_files()[task]
    tree = syntax_tree(path.read_text(encoding="utf-8"))
    name = registered(tree)[task]
    module = types.ModuleType(f"reasoning_gym_options_{task}")
    sys.modules[module.__name__] = module  # where dataclasses look annotations up
    try:
        exec(compile(ast.Module(_needed(tree, name), []), str(path), "exec"), module.__dict__)  # noqa: S102 - installed code
        config = getattr(module, name)
    except Exception:  # noqa: BLE001 - it needs a package, and importing packages is what this avoids
        return None
    return config if isinstance(config, type) and hasattr(config, "validate") else None


def _needed(tree: ast.Module, name: str) -> list[ast.stmt]:
    """The class of that name, what it refers to in the same file, and imports of the standard library."""
    defined: dict[str, ast.stmt] = {}
    for node in tree.body:
        match node:
            case ast.ClassDef() | ast.FunctionDef():
                defined[node.name] = node
            case ast.Assign(targets=[ast.Name(id=target)]) | ast.AnnAssign(target=ast.Name(id=target)):
                defined[target] = node
    wanted: set[str] = set()
    todo = [name]
    while todo:
        one = todo.pop()
        if one in defined and one not in wanted:
            wanted.add(one)
            todo += [part.id for part in ast.walk(defined[one]) if isinstance(part, ast.Name)]
    kept = {id(defined[one]) for one in wanted}
    return [node for node in tree.body if id(node) in kept or _imports_standard(node)]


def _imports_standard(node: ast.stmt) -> bool:
    match node:
        case ast.Import(names=names):
            return all(alias.name.partition(".")[0] in sys.stdlib_module_names for alias in names)
        case ast.ImportFrom(module=str(module), level=0):
            return module.partition(".")[0] in sys.stdlib_module_names
    return False
