"""What is wrong with a recipe, in the three parts a person needs: where, what, and how to mend it.

It holds no rules; the reader (`parse`) and the checks produce these values.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from pydantic_core import PydanticCustomError


@dataclass(frozen=True)
class Problem:
    """One fault. ``param`` is the dotted path as the client wrote it; list positions are numbers (``suites.2.n``)."""

    param: str
    message: str
    hint: str


class RecipeError(ValueError):
    """A recipe cannot be accepted. ``problems`` holds every fault; ``param``, ``message`` and ``hint`` are the first's."""

    def __init__(self, param: str, message: str, hint: str, problems: Sequence[Problem] = ()) -> None:
        self.param = param
        self.message = message
        self.hint = hint
        self.problems: tuple[Problem, ...] = tuple(problems) or (Problem(param, message, hint),)
        super().__init__("; ".join(f"{p.param or 'recipe'}: {p.message} ({p.hint})" for p in self.problems))

    @classmethod
    def of(cls, problems: Sequence[Problem]) -> "RecipeError":
        """The error that carries ``problems`` (at least one), in their order."""
        first = problems[0]
        return cls(first.param, first.message, first.hint, problems)


def refuse(message: str, hint: str) -> PydanticCustomError:
    """The exception a field validator raises: pydantic adds the place, the reader turns it into a `Problem`."""
    return PydanticCustomError("recipe", "{message}", {"message": message, "hint": hint})


def allowed(values: Iterable[str]) -> str:
    """``a, b, c``: the list of allowed values, in their own order."""
    return ", ".join(values)


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """``did you mean X? `` or an empty string: the closest known name, if one is close."""
    close = get_close_matches(given, list(known), n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}? " if close else ""
