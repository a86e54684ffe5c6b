"""Python source to a syntax tree, one thread at a time.

CPython before 3.13 counts the depth of the tree under construction in one number for all threads: of two threads inside
``ast.parse`` either may end with "SystemError: AST constructor recursion depth mismatch" (cpython issue 106905). The api
answers requests on several threads, so everything here that reads source text in a process with threads asks this.
"""

import ast
from threading import Lock

_one_at_a_time = Lock()


def syntax_tree(source: str | bytes, filename: str = "<unknown>") -> ast.Module:
    """As ``ast.parse``; raises what it raises: SyntaxError, ValueError, RecursionError or MemoryError."""
    with _one_at_a_time:
        return ast.parse(source, filename=filename)
