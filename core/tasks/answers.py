"""What of a prompt already belongs to the answer: a thinking tag that the template opens, and the recipe's prefill.

A model that is made to begin with ``<think>`` or with ``The answer is \\boxed{`` is judged on the whole answer, not on the
part that it sampled. Nothing is rendered or judged here.
"""

import re
from dataclasses import dataclass

from core.tasks.items import Item

# Qwen3 without thinking is prefilled with an empty thought, the distilled R1 models with an open one.
_OPENED = re.compile(r"<think>(?:\s*</think>)?\s*\Z")


@dataclass(frozen=True)
class Answer:
    """One completion to be rewarded.

    ``prompt`` is the rendered prompt as text, ``text`` the answer that graders see (prefill and sampled text), ``opening`` a
    thinking tag that the template wrote before it, ``n_tokens`` the number of sampled tokens.
    """

    item: Item
    prompt: str
    text: str
    n_tokens: int
    opening: str = ""


def template_opening(prompt: str, prefill: str = "") -> str:
    """Return the thinking tag that the chat template itself put at the end of ``prompt``, "" where it put none.

    ``prompt`` is the rendered prompt as text, with the recipe's ``prefill`` at its end.
    """
    match = _OPENED.search(prompt.removesuffix(prefill))
    return match[0] if match else ""
