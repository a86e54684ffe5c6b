"""From pydantic's errors to problems with the place as the client wrote it, plain words, and a hint.

Unknown fields get their hint from the table of other trainers' names (`hints`), else from the closest known field.
"""

from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from core.recipes.errors import Problem, allowed, did_you_mean
from core.recipes.hints import FOREIGN_NAMES, foreign_hint

Location = tuple[int | str, ...]

_IGNORED = {"default_factory_not_called"}
_TYPES = {
    "int_type": "a whole number without quotes or decimal point",
    "float_type": "a number without quotes",
    "bool_type": "true or false",
    "string_type": "a text in quotes",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "none_required": "null",
}
_BOUNDS = {
    "greater_than": ("gt", "greater than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}
_LENGTHS = {
    "string_too_short": ("min_length", "at least", "characters"),
    "string_too_long": ("max_length", "at most", "characters"),
    "too_short": ("min_length", "at least", "entries"),
    "too_long": ("max_length", "at most", "entries"),
}


def problems_of(error: ValidationError, obj: dict[str, Any], cls: type[BaseModel]) -> list[Problem]:
    """Every problem of ``error``, in field order; a missing field whose foreign name is there is told only once."""
    details = [item for item in error.errors(include_url=False) if item["type"] not in _IGNORED]
    # pydantic counts only the right entries of a list, so a list of wrong ones is also "too short".
    details = [item for item in details if item["type"] != "too_short" or not _has_wrong_entry(item["loc"], details)]
    told = {
        FOREIGN_NAMES[name].field
        for item in details
        if item["type"] == "extra_forbidden" and (name := str(item["loc"][-1])) in FOREIGN_NAMES
    }
    problems = (
        _problem(item, obj, cls)
        for item in details
        if not (item["type"] == "missing" and ".".join(map(str, item["loc"])) in told)
    )
    return list(dict.fromkeys(problems))


def _has_wrong_entry(loc: Location, details: list[ErrorDetails]) -> bool:
    return any(len(item["loc"]) > len(loc) and item["loc"][: len(loc)] == loc for item in details)


def written_path(obj: Any, loc: Location) -> tuple[str, ...]:
    """The place of ``loc`` in ``obj``: cut where the client wrote a shorthand, without pydantic's union tags."""
    path: list[str] = []
    value = obj
    for index, part in enumerate(loc):
        if isinstance(value, dict):
            if part not in value and index + 1 < len(loc):
                continue
            value = value.get(part)
        elif isinstance(value, list):
            value = value[part] if isinstance(part, int) and part < len(value) else None
        else:
            break
        path.append(str(part))
    return tuple(path)


def cut_to_written(obj: Any, param: str) -> str:
    """``param`` cut to what the client wrote: ``looks`` for ``looks.every`` where the client wrote ``"looks": 10``."""
    parts = param.split(".")
    value = obj
    for index, part in enumerate(parts):
        if isinstance(value, dict):
            if part not in value:
                return param
            value = value[part]
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            return ".".join(parts[:index])
    return param


def _problem(item: ErrorDetails, obj: dict[str, Any], cls: type[BaseModel]) -> Problem:
    loc = item["loc"]
    message, hint = _words(item, cls)
    return Problem(".".join(written_path(obj, loc)), message, hint)


def _words(item: ErrorDetails, cls: type[BaseModel]) -> tuple[str, str]:
    context = item.get("ctx", {})
    match item["type"]:
        case "extra_forbidden":
            words = _unknown(item["loc"], cls)
        case "recipe":
            words = str(context["message"]), str(context["hint"])
        case "missing":
            words = f"{item['loc'][-1]} is missing", "this field has no default; add it"
        case "literal_error":
            words = _not_a_choice(item["input"], _literals(str(context["expected"])))
        case _:
            words = _wrong_value(item["type"], item["input"], context, item["msg"])
    return words


def _not_a_choice(given: Any, names: list[str]) -> tuple[str, str]:
    near = did_you_mean(given, names) if isinstance(given, str) else ""
    return f"{_shown(given)} is not allowed", f"{near}allowed: {allowed(names)}"


def _wrong_value(kind: str, given: Any, context: dict[str, Any], fallback: str) -> tuple[str, str]:
    if kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        return f"{_shown(given)} is out of range", f"it must be {words} {context[key]:g}"
    if kind in _LENGTHS:
        key, words, unit = _LENGTHS[kind]
        return f"it has {context.get('actual_length', len(given))} {unit}", f"{words} {context[key]}"
    if kind in _TYPES:
        return f"{_shown(given)} is not allowed here", f"write {_TYPES[kind]}"
    return f"{_shown(given)}: {fallback}", "see the recipe reference for what this field takes"


def _unknown(loc: Location, cls: type[BaseModel]) -> tuple[str, str]:
    name = str(loc[-1])
    fields = tuple(_fields_at(cls, loc[:-1]))
    message = f"the field {name!r} is not known"
    if (foreign := foreign_hint(name)) is not None:
        return message, foreign
    near = did_you_mean(name, fields)
    return message, near.strip() if near else f"allowed here: {allowed(fields)}"


def _fields_at(cls: type[BaseModel], loc: Location) -> Iterator[str]:
    """Names of the fields of the block at ``loc`` below ``cls``."""
    for part in loc:
        info = cls.model_fields.get(str(part))
        if info is not None:
            cls = _block(info.annotation) or cls
    return iter(cls.model_fields)


def _block(annotation: Any) -> type[BaseModel] | None:
    """The one recipe block inside an annotation (``Looks`` in ``Annotated[Looks, ...] | None``)."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_block(argument) for argument in get_args(annotation))
    return next((block for block in found if block is not None), None)


def _literals(expected: str) -> list[str]:
    """pydantic's ``'a', 'b' or 'c'`` as a list."""
    return [part.strip().strip("'") for part in expected.replace(" or ", ", ").split(",")]


def _shown(value: Any) -> str:
    """A value as JSON would show it, shortened."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case dict():
            return "an object"
        case list() | tuple():
            return "a list"
        case _:
            text = repr(value)
            return text if len(text) <= 80 else text[:77] + "..."
