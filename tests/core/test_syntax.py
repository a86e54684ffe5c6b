"""Threads that read Python source at the same time all get their trees."""

import ast
import gc
import os
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from core.recipes import gym_tasks
from core.syntax import syntax_tree


@pytest.fixture
def eager_threads():
    """Threads that take turns inside a tree: the collector, which building a tree sets off, gives way to the next one."""
    before = gc.get_threshold()
    gc.set_threshold(50)
    gc.callbacks.append(_give_way)
    yield
    gc.callbacks.remove(_give_way)
    gc.set_threshold(*before)


def _give_way(_phase, _info):
    os.sched_yield()


def test_trees_read_by_many_threads_are_those_that_one_thread_reads(eager_threads):
    source = Path(textwrap.__file__).read_text(encoding="utf-8")
    expected = ast.dump(ast.parse(source))
    with ThreadPoolExecutor(6) as pool:
        trees = [ast.dump(tree) for tree in pool.map(lambda _: syntax_tree(source), range(12))]
    assert trees == [expected] * 12


def test_first_requests_that_come_together_all_learn_the_tasks(eager_threads):
    expected = gym_tasks.task_files.__wrapped__()
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: gym_tasks.task_files.__wrapped__(), range(4)))
    assert answers == [expected] * 4
    assert len(expected) > 50


def test_a_fault_in_the_source_is_told_with_its_file_and_lets_the_next_one_in():
    with pytest.raises(SyntaxError) as fault:
        syntax_tree(b"def f(:", "mine.py")
    assert fault.value.filename == "mine.py"
    assert isinstance(syntax_tree("x = 1").body[0], ast.Assign)
