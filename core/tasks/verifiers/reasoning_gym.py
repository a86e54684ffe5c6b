"""Grader for reasoning-gym items: extract first, then ask the task's own scorer, correct only at a score of 1.0.

The package's scorers give partial credit when the gold answer appears anywhere in the text, so a completion is never
given to them whole. Which part is the answer:

1. Everything up to the last ``</think>`` is dropped.
2. If an answer marker is there, the last one decides: ``<answer>...</answer>``, ``\\boxed{...}``, or "answer is" /
   "answer:" up to the end of its line.
3. For a numeric gold answer the last number of that part (or, without a marker, of the whole text) is the answer. A
   number is read strictly: "3/4", "2^5" or "5km" are not 3, 2 or 5. Behind a marker, different numbers joined by "or"
   are a hedge and wrong.
4. For other gold answers the marked part is the answer; without a marker the last non-empty line, or the whole text when
   the gold answer itself has several lines.

Tasks whose scorers evaluate the answer as code are refused by :mod:`core.tasks.sources`; this module never sees them.
"""

import json
import re
from functools import lru_cache
from importlib.metadata import version
from typing import Any

from core.tasks.items import Item
from core.tasks.verifiers.boxed import after_thinking, last_boxed
from core.tasks.verifiers.verdict import Judgement, Outcome

VERSION = f"reasoning_gym/1+{version('reasoning-gym')}"

_NUMBER = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|[+-]?\.\d+")
_TOKEN = re.compile(r"(?<![\w.])(?:[+-]\s?)?(?:\d|\.\d)[\w.,/^:]*")
_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)
_PHRASE = re.compile(r"\banswer\b(?:\s+is\b\s*:?|\s*:)[ \t*$]*([^\n]*)", re.IGNORECASE)
_OR = re.compile(r"\bor\b", re.IGNORECASE)


def warm_up() -> None:
    """Import reasoning-gym, which takes seconds."""
    import reasoning_gym  # noqa: F401


def grade(item: Item, text: str) -> Judgement:
    """Judge a completion; ``item.meta`` holds the task's name, options, seed, size and index."""
    dataset = _dataset(
        item.meta["task"], json.dumps(item.meta["options"], sort_keys=True), item.meta["seed"], item.meta["size"]
    )
    entry = dataset[item.meta["index"]]
    if entry["answer"] != item.answer or entry["question"] != item.prompt:
        return Judgement(
            Outcome.INFRA_ERROR, "the installed reasoning-gym generates another item for this seed and index"
        )
    answer, problem = extract(text, item.gold)
    if answer is None:
        return Judgement(Outcome.NO_ANSWER, problem)
    if problem:
        return Judgement(Outcome.WRONG, problem, answer)
    score = float(dataset.score_answer(answer, entry))
    if score == 1.0:
        return Judgement(Outcome.CORRECT, "scored 1", answer)
    return Judgement(Outcome.WRONG, f"scored {score:.3g}; only 1 counts", answer)


def extract(text: str, gold: str) -> tuple[str | None, str]:
    """Return (answer or None, problem): see the module's rules. A problem with an answer means that it is wrong."""
    text = after_thinking(text).replace("\N{MINUS SIGN}", "-")
    marked = _marked(text)
    if is_number(gold):
        return _number_answer(text if marked is None else marked, hedge_counts=marked is not None)
    if marked is not None:
        answer = marked.strip()
    elif "\n" in gold.strip():
        answer = text.strip()
    else:
        lines = [line for line in text.splitlines() if line.strip()]
        answer = lines[-1].strip() if lines else ""
    return (answer, "") if answer else (None, "the completion holds no answer")


def is_number(text: str) -> bool:
    """Whether the text is one plain decimal number (sign, thousands commas and decimals allowed)."""
    return _NUMBER.fullmatch(text.strip()) is not None


def _number_answer(part: str, *, hedge_counts: bool) -> tuple[str | None, str]:
    tokens = [_clean(match, part) for match in _TOKEN.finditer(part)]
    if not tokens:
        return None, "no number where the answer should be"
    last = tokens[-1]
    if hedge_counts and len(set(tokens)) > 1 and _OR.search(part):
        return last, "several numbers offered as the answer"
    if not is_number(last):
        return last, f"{last[:40]!r} is not a plain number"
    return last, ""


def _clean(match: re.Match[str], text: str) -> str:
    """The token without trailing punctuation; a sign counts only where it cannot be an operator."""
    token = match.group().rstrip(".,:/^").replace(" ", "").replace("\n", "")
    if token[0] in "+-":
        before = text[: match.start()].rstrip()
        spaced = match.group()[1].isspace()
        operand = bool(before) and (before[-1].isalnum() or before[-1] in ")]}")
        glued = match.start() > 0 and not text[match.start() - 1].isspace()
        if operand and (spaced or glued):
            return token[1:]
    return token


def _marked(text: str) -> str | None:
    """Content of the last answer marker of any kind, or None."""
    found: list[tuple[int, str]] = [(match.end(), match.group(1)) for match in _TAG.finditer(text)]
    found += [(match.start(1), match.group(1)) for match in _PHRASE.finditer(text)]
    box = last_boxed(text)
    if box is not None:
        found.append((box.end, box.content))
    return max(found, key=lambda pair: pair[0])[1] if found else None


@lru_cache(maxsize=8)
def _dataset(task: str, options: str, seed: int, size: int) -> Any:
    import reasoning_gym

    return reasoning_gym.create_dataset(task, seed=seed, size=size, **json.loads(options))
