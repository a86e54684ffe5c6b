"""Own reward functions: found by plain name, pinned by hash, run apart, and killed when they do not end."""

import hashlib
from pathlib import Path

import pytest

from core.recipes.rewards import RewardTerm
from core.tasks.answers import Answer
from core.tasks.items import Item
from core.tasks.reward_files import RewardFileError, find_function, own_functions, pinned
from core.tasks.reward_pool import Call, RewardLoadError, RewardPool

SOURCE = '''
"""Rewards of the tests."""
import os, random, threading

def length(prompt, completion, item, most=10):
    return min(len(completion), most) / most

def told(prompt, completion, item):
    return float(prompt == "asked" and item["answer"] == "5" and item["meta"]["level"] == 3)

def strange(prompt, completion, item):
    return {"none": None, "nan": float("nan"), "inf": float("inf"), "text": "1", "list": [1], "true": True}[completion]

def chance(prompt, completion, item):
    return random.random()

def hostile(prompt, completion, item):
    print("noise on standard output")
    if completion == "loop":
        while True:
            pass
    if completion == "sleep":
        threading.Event().wait()
    if completion == "memory":
        return len(bytearray(1 << 34))
    if completion == "crash":
        os._exit(3)
    if completion == "raise":
        raise ValueError("no reward here")
    return 1.0
'''
ITEM = Item("a", "p", "5", "math", meta={"level": 3})


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("rewards")
    (made / "mine.py").write_text(SOURCE)
    return made


@pytest.fixture(scope="module")
def pool():
    with RewardPool(workers=1, time_limit_s=1.0, memory_mb=512) as started:
        yield started


def call(folder: Path, function: str, text: str, seed: int = 0, **arguments) -> Call:
    found = find_function(f"file:mine.py:{function}", folder)
    return Call(found, Answer(ITEM, "asked", text, 1), arguments, seed)


def test_a_function_gets_prompt_completion_item_and_its_arguments(folder, pool):
    found = pool.score([
        call(folder, "length", "abcde"), call(folder, "length", "abcde", most=5), call(folder, "told", ""),
    ])  # fmt: skip
    assert [one.value for one in found] == [0.5, 1.0, 1.0]
    assert {one.error for one in found} == {None}


def test_what_is_not_a_number_is_no_value_with_its_reason(folder, pool):
    found = pool.score(
        [call(folder, "strange", text) for text in ("none", "nan", "inf", "text", "list", "true", "what")]
    )
    assert [one.value for one in found] == [None, None, None, None, None, 1.0, None]
    assert not any(one.infra for one in found)
    assert found[0].error is None
    errors = [one.error or "" for one in found]
    assert ("nan" in errors[1], "inf" in errors[2], "text" in errors[3], "list" in errors[4]) == (True,) * 4
    assert "KeyError" in errors[6]


def test_hostile_calls_lose_their_own_value_and_no_other(folder, pool):
    texts = ["fine", "loop", "fine", "sleep", "fine", "memory", "fine", "crash", "fine", "raise", "fine"]
    found = pool.score([call(folder, "hostile", text) for text in texts])
    assert [one.value for one in found] == [1.0 if text == "fine" else None for text in texts]
    reasons = {text: one.error or "" for text, one in zip(texts, found, strict=True)}
    assert not any(one.infra for one in found)
    assert "longer than 1 s" in reasons["loop"]
    assert "longer than 1 s" in reasons["sleep"]
    assert "512 MiB" in reasons["memory"]
    assert "status 3" in reasons["crash"]
    assert reasons["raise"] == "ValueError: no reward here"


def test_random_numbers_follow_the_samples_seed(folder, pool):
    first, again, other = (pool.score([call(folder, "chance", "", seed)])[0].value for seed in (1, 1, 2))
    assert first == again != other


def test_the_secrets_of_the_service_are_not_in_its_environment(folder, monkeypatch, tmp_path):
    (tmp_path / "spy.py").write_text(
        "import os\ndef f(prompt, completion, item):\n    return 'DRIFTLINE_TOKEN' in os.environ\n"
    )
    monkeypatch.setenv("DRIFTLINE_TOKEN", "secret")
    found = find_function("file:spy.py:f", tmp_path)
    with RewardPool(workers=1) as fresh:
        assert fresh.score([Call(found, Answer(ITEM, "", "", 1), {}, 0)])[0].value == 0.0


def test_a_file_that_cannot_be_loaded_is_told_before_any_step(tmp_path):
    (tmp_path / "bad.py").write_text("import there_is_no_such_module\ndef f(prompt, completion, item): return 1\n")
    with RewardPool(workers=1) as pool, pytest.raises(RewardLoadError, match=r"file:bad.py:f.*there_is_no_such_module"):
        pool.check({"file:bad.py:f": find_function("file:bad.py:f", tmp_path)})


def test_a_file_that_changes_during_the_run_is_refused(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def f(prompt, completion, item): return 1\n")
    found = find_function("file:mine.py:f", tmp_path)
    file.write_text("def f(prompt, completion, item): return 2\n")
    with RewardPool(workers=1) as pool, pytest.raises(RewardLoadError, match="was changed"):
        pool.score([Call(found, Answer(ITEM, "", "", 1), {}, 0)])


@pytest.mark.parametrize(
    ("term", "words"),
    [("file:absent.py:f", "no file absent.py"), ("file:mine.py:absent", "defines no function absent"),
     ("file:link.py:f", "no file link.py"), ("file:broken.py:f", "not valid Python")],
)  # fmt: skip
def test_files_that_are_not_there_lead_elsewhere_or_do_not_parse_are_refused(folder, tmp_path, term, words):
    (tmp_path / "mine.py").write_text(SOURCE)
    (tmp_path / "broken.py").write_text("def f(:\n")
    elsewhere = folder / "mine.py"
    (tmp_path / "link.py").symlink_to(elsewhere)
    with pytest.raises(RewardFileError, match=words):
        find_function(term, tmp_path)


def test_terms_are_pinned_to_the_files_content(folder):
    terms = {"math": RewardTerm(weight=1.0), "file:mine.py:length": RewardTerm(weight=0.5)}
    done, problems = pinned(terms, folder)
    digest = hashlib.sha256(SOURCE.encode()).hexdigest()
    assert (problems, done["file:mine.py:length"].sha256, done["math"].sha256) == ([], digest, None)
    assert own_functions(done, folder)["file:mine.py:length"].sha256 == digest
    other = {"file:mine.py:length": RewardTerm(weight=0.5, sha256="0" * 64)}
    with pytest.raises(RewardFileError, match="is not the file"):
        own_functions(other, folder)
    assert [one.param for one in pinned(other, folder)[1]] == ["rewards.file:mine.py:length"]
    assert "DRIFTLINE_REWARDS" in pinned(other, None)[1][0].hint
