"""Grader for mathematical answers: the last box decides, structure first, then exact values, then algebra.

1. Where: behind the last ``</think>``, the last brace-balanced ``\\boxed{}``; without one, unless only boxes count, what
   follows the last "answer is" / "answer:" / ``####`` up to the end of its sentence, or an ``<answer>`` tag.
2. Several candidates there are a hedge: a list equals only a list with the same elements.
3. Spelling is normalised; lists, sets, tuples, intervals and matrices are compared piece by piece.
4. Plain arithmetic compares as exact fractions; a decimal may be a rounding (see :mod:`.rational`).
5. Everything else goes to :mod:`.symbolic`.
6. A sum or product of plain numbers is no answer where the reference is a plain number: the question's own arithmetic has
   that value, and a policy that is rewarded for repeating it learns to repeat it.

When in doubt an answer is wrong: for training, a false reward is worse than a missed one.
"""

import re
from fractions import Fraction
from importlib.metadata import version

from core.tasks.items import Item
from core.tasks.verifiers import symbolic
from core.tasks.verifiers.answers import (
    Answer,
    Bracketed,
    Leaf,
    Listing,
    Matrix,
    Union,
    is_symbol,
    list_pieces,
    structure,
    without_thousands,
)
from core.tasks.verifiers.boxed import after_thinking, last_boxed
from core.tasks.verifiers.latex_text import normalise, plain, split_top, squashed
from core.tasks.verifiers.rational import Exact, exact, same_value
from core.tasks.verifiers.verdict import Judgement, Outcome
from core.tasks.verifiers.whole_numbers import verdict_on

VERSION = f"math/3+{version('math-verify')}+{version('sympy')}"

_MAX_ANSWER = 2000
_MAX_ELEMENTS = 40
_MAX_DEPTH = 12
_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)
_PHRASE = re.compile(r"\banswer\b(?:\s+is\b\s*:?|\s*:)[\s*]*|####[ \t]*", re.IGNORECASE)
_SENTENCE_END = re.compile(r"\n|[.!?](?=\s|$|\*|<)")
_EQUALS = re.compile(r"(?<![<>\\!])=")
_APPROX = re.compile(r"\\approx(?![a-zA-Z])")
_UNIT = re.compile(r"\s*(?:\\text\s*\{([^{}]*)\}|(?<=[\d}])\s([a-zA-Z][a-zA-Z /]*))(?:\^\s*(?:\{?(\d)\}?))?$")
_BASE = re.compile(r"([0-9A-Fa-f]+)_(?:\{\s*(\d+)\s*\}|(\d))")
_CLOCK = re.compile(r"\d+(?:\s*:\s*\d+)+")
_WORD = re.compile(r"[a-zA-Z]{3,}|\b[nN]o\b")
_NOT_UNITS = re.compile(r"\b(?:or|and|not|either|to|between|maybe|if|for|no)\b", re.IGNORECASE)
_NUMBER = r"[-+]?\d[\d.,]*"
_PLAIN_NUMBER = re.compile(_NUMBER)
_UNDONE = re.compile(rf"\(?{_NUMBER}(?:\)?\s*(?:[-+*]|\\times|\\cdot)\s*\(?{_NUMBER})+\)?")
_SAME_UNIT = {
    "centimeter": "cm", "centimetre": "cm", "meter": "m", "metre": "m", "kilometer": "km", "kilometre": "km",
    "millimeter": "mm", "millimetre": "mm", "inch": "in", "inche": "in", "feet": "ft", "foot": "ft", "minute": "min",
    "second": "s", "sec": "s", "hour": "h", "hr": "h", "gram": "g", "kilogram": "kg", "square": "sq",
}  # fmt: skip


def warm_up() -> None:
    """Import what grading needs."""
    symbolic.warm_up()


def grade(item: Item, text: str, *, boxed_only: bool = False) -> Judgement:
    """Judge a completion against ``item.answer``; ``item.meta.boxed_only`` true means that only boxes count."""
    boxed_only = boxed_only or item.meta.get("boxed_only") is True
    answer = extract(text, boxed_only=boxed_only)
    if answer is None:
        return Judgement(Outcome.NO_ANSWER, "no box" if boxed_only else "no box and no 'answer is'")
    if len(answer) > _MAX_ANSWER:
        return Judgement(Outcome.WRONG, f"the answer is longer than {_MAX_ANSWER} characters", answer[:_MAX_ANSWER])
    if _left_undone(item.gold, answer):
        return Judgement(Outcome.WRONG, "its arithmetic is left undone", answer)
    return verdict_on(equal(item.gold, answer), answer)


def extract(text: str, *, boxed_only: bool = False) -> str | None:
    """Return the text that is the answer, or None; see the module's first rule."""
    text = after_thinking(text)
    box = last_boxed(text)
    if box is not None:
        return box.content.strip() or None
    if boxed_only or "\\boxed{" in text:  # an open last box was cut off: nothing was answered
        return None
    found = [(match.end(), match.group(1)) for match in _TAG.finditer(text)]
    found += [(match.end(), _sentence(text[match.end() :])) for match in _PHRASE.finditer(text)]
    return (max(found)[1].strip() or None) if found else None


def equal(gold: str, answer: str) -> bool:
    """Whether the answer means the same as the reference; both are LaTeX or plain text without a box."""
    left, right = normalise(gold), normalise(answer)
    if not left or not right:
        return False
    if not _APPROX.search(left):
        right = split_top(right, _APPROX)[0]
    return _equal(left, right, 0)


def _left_undone(gold: str, answer: str) -> bool:
    left, right = normalise(gold), normalise(answer)
    return _PLAIN_NUMBER.fullmatch(left.strip()) is not None and _UNDONE.fullmatch(right.strip()) is not None


def _sentence(text: str) -> str:
    match = _SENTENCE_END.search(text)
    return text[: match.start()] if match else text


def _equal(gold: str, answer: str, depth: int) -> bool:
    if depth > _MAX_DEPTH:
        return False
    if squashed(gold) == squashed(answer):
        return bool(squashed(gold))
    if "\\ldots" in gold or "\\ldots" in answer:
        return False  # a pattern means what the reader makes of it, so only the same text is the same
    gold_sides, answer_sides = _sides(gold), _sides(answer)
    if len(gold_sides) > 1 or len(answer_sides) > 1:
        return _equal_relations(gold_sides, answer_sides, depth)
    return _equal_structures(structure(gold), structure(answer), depth)


def _sides(text: str) -> list[str]:
    """The sides of an equation; a list of several equations is no equation but a list."""
    sides = split_top(text, _EQUALS)
    several = len(sides) > 2 and len(list_pieces(text)) > 1
    return [text] if several or not all(sides) else sides


def _equal_relations(gold: list[str], answer: list[str], depth: int) -> bool:
    """Assignments compare by their values, equations by their meaning, and a chain of values must agree in each."""
    if len(gold) == 1:
        values = [side for index, side in enumerate(answer) if not (index == 0 and is_symbol(side))]
        return bool(values) and all(_equal(gold[0], side, depth + 1) for side in values)
    if len(gold) == 2 and is_symbol(gold[0]):
        if len(answer) == 1:
            return _equal(gold[1], answer[0], depth + 1)
        if squashed(answer[0]) == squashed(gold[0]):
            return all(_equal(gold[1], side, depth + 1) for side in answer[1:])
    if len(gold) == 2 == len(answer):
        return symbolic.same_expression(" = ".join(gold), " = ".join(answer))
    return False


def _equal_structures(gold: Answer, answer: Answer, depth: int) -> bool:
    match gold, answer:
        case Leaf(left), Leaf(right):
            return _equal_leaves(left, right)
        case (Listing(left), Listing(right)) | (Union(left), Union(right)):
            return _equal_in_any_order(left, right, depth)
        case Bracketed(), Bracketed():
            return _same_brackets(gold, answer) and _equal_in_order(gold.elements, answer.elements, depth)
        case Matrix(left), Matrix(right):
            return len(left) == len(right) and all(
                _equal_in_order(gold_row, answer_row, depth) for gold_row, answer_row in zip(left, right, strict=True)
            )
        case _:
            return False


def _same_brackets(gold: Bracketed, answer: Bracketed) -> bool:
    """Same kind of bracket at both ends; where both name the variable of an inequality, the same one."""
    if gold.variable and answer.variable and squashed(gold.variable) != squashed(answer.variable):
        return False
    return (gold.opening, gold.closing) == (answer.opening, answer.closing)


def _equal_in_order(gold: tuple[str, ...], answer: tuple[str, ...], depth: int) -> bool:
    return len(gold) == len(answer) and all(
        _equal(left, right, depth + 1) for left, right in zip(gold, answer, strict=True)
    )


def _equal_in_any_order(gold: tuple[str, ...], answer: tuple[str, ...], depth: int) -> bool:
    """One-to-one matching; equality is transitive enough that taking the first match is right."""
    if len(gold) != len(answer) or len(gold) > _MAX_ELEMENTS:
        return False
    left_over = list(answer)
    for element in gold:
        found = next((one for one in left_over if _equal(element, one, depth + 1)), None)
        if found is None:
            return False
        left_over.remove(found)
    return True


def _equal_leaves(gold: str, answer: str) -> bool:
    (gold, gold_unit), (answer, unit) = _split_unit(gold), _split_unit(answer)
    if gold_unit and unit and gold_unit != unit:
        return False
    if _BASE.fullmatch(squashed(gold)) or _BASE.fullmatch(squashed(answer)):
        return _equal_in_base(squashed(gold), squashed(answer))
    if _CLOCK.fullmatch(gold) or _CLOCK.fullmatch(answer):
        return squashed(gold) == squashed(answer)
    gold, answer = plain(gold), plain(answer)
    if _is_words(gold) or _is_words(answer):
        return squashed(gold).casefold() == squashed(answer).casefold()
    return _equal_quantities(gold, answer)


def _equal_quantities(gold: str, answer: str) -> bool:
    (gold, gold_percent), (answer, percent) = _split_percent(gold), _split_percent(answer)
    gold, answer = without_thousands(gold), without_thousands(answer)
    left, right = exact(gold), exact(answer)
    if left is None or right is None:
        return gold_percent == percent and symbolic.same_expression(gold, answer)
    if same_value(left, right):
        return True  # a percent sign on one side only is a matter of wording
    if gold_percent != percent:
        left, right = (_hundredth(left), right) if gold_percent else (left, _hundredth(right))
        return left.value == right.value
    return False


def _hundredth(number: Exact) -> Exact:
    return Exact(number.value * Fraction(1, 100))


def _split_percent(text: str) -> tuple[str, bool]:
    stripped = re.sub(r"\s*(?:\\?%|\bpercent\b)$", "", text.strip())
    return stripped, stripped != text.strip()


def _split_unit(text: str) -> tuple[str, str]:
    """(value, unit) where trailing words behind a value are a unit in a canonical spelling."""
    match = _UNIT.search(text)
    if match is None or not text[: match.start()].strip() or match.start() == 0:
        return text, ""
    words = (match.group(1) or match.group(2) or "").strip()
    value = text[: match.start()].strip()
    if _NOT_UNITS.search(words) or not _can_carry_unit(value, marked=match.group(1) is not None):
        return text, ""
    if words.casefold() == "percent":
        return value + "\\%", ""
    names = [word.casefold().rstrip(".").removesuffix("s") or "s" for word in words.split()]
    unit = " ".join(_SAME_UNIT.get(name, name) for name in names)
    return value, unit + (match.group(3) or "")


def _can_carry_unit(value: str, *, marked: bool) -> bool:
    """A plain number can; an expression only when the unit is marked as text."""
    if exact(without_thousands(value)) is not None:
        return True
    return marked and re.search(r"\d|\\pi", value) is not None and not _is_words(plain(value))


def _equal_in_base(gold: str, answer: str) -> bool:
    """Digits and base; an answer may leave the base away, since the question names it, but not add one."""
    left, right = _BASE.fullmatch(gold), _BASE.fullmatch(answer)
    if left is None:
        return False
    digits, base = left.group(1).casefold(), left.group(2) or left.group(3)
    if right is None:
        return answer.casefold() == digits
    return right.group(1).casefold() == digits and (right.group(2) or right.group(3)) == base


def _is_words(text: str) -> bool:
    """Whether the text is words rather than mathematics: a run of three letters that is no LaTeX command or function."""
    bare = re.sub(
        r"\\[a-zA-Z]+|\\?(?:sin|cos|tan|log|exp|max|min|gcd|lcm|arcsin|arccos|arctan|sec|csc|cot|mod)\b", " ", text
    )
    return _WORD.search(bare) is not None
