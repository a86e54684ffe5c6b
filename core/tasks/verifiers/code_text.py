"""Which part of a completion is the program. It reads text; it runs nothing.

1. Everything up to the last ``</think>`` is dropped.
2. The last fenced block decides (`` ``` `` or ``~~~``, any language word). A block that the end of the text cuts off counts
   up to the end: whether it is whole, the tests will say.
3. Without a fence the whole text is the program, if Python can compile it.
4. For HumanEval a program that does not define the function asked for continues the prompt; then the text up to the first
   line that leaves the function's body is taken, as base models go on with other code.
"""

import re

from core.syntax import syntax_tree
from core.tasks.verifiers.boxed import after_thinking

_FENCE = re.compile(r"^[ \t]*(```+|~~~+)[^\n`]*\n(.*?)(?:^[ \t]*\1[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)
_LEAVES = re.compile(r"\n(?=[^\s#)\]}])|\n(?=#)")


def program(text: str) -> str | None:
    """The program of a completion that is one by itself, or None where there is none."""
    block, body = _last_block(text)
    if block is not None:
        return block if block.strip() else None
    return body if body.strip() and _compiles(body) else None


def continuation(text: str, prompt: str, entry_point: str) -> str | None:
    """The program of a HumanEval completion: the prompt and what continues it, or None for an empty completion."""
    block, body = _last_block(text)
    found = body if block is None else block
    if not found.strip():
        return None
    if re.search(rf"^(?:async\s+)?def\s+{re.escape(entry_point)}\b", found, re.MULTILINE):
        return f"{prompt}\n{_indented_end(prompt)}\n{found}"
    if block is None:
        found = _function_body(found)
    return prompt + found


def _last_block(text: str) -> tuple[str | None, str]:
    """(content of the last fenced block or None, the whole text behind the thinking)."""
    body = after_thinking(text).replace("\r\n", "\n")
    blocks = [match.group(2) for match in _FENCE.finditer(body)]
    return (blocks[-1] if blocks else None), body


def _function_body(text: str) -> str:
    """The text up to the first line that is not indented, counted from its first line that holds anything."""
    start = len(text) - len(text.lstrip("\n"))
    match = _LEAVES.search(text, max(start, text.find("\n", start)))
    return text if match is None or not text[: match.start()].strip() else text[: match.start() + 1]


def _indented_end(prompt: str) -> str:
    """A body for the prompt's function where it has none, so that the whole still compiles."""
    return "" if _compiles(prompt) else "    pass"


def _compiles(text: str) -> bool:
    try:
        syntax_tree(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
