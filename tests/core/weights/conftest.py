"""The pool of graders that the trainer's tests use too."""

from tests.core.train.conftest import pool

__all__ = ["pool"]
