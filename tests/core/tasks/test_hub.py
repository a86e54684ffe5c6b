"""Hugging Face data sets by mapping, read by the real package from a folder in the operator's items folder, without network."""

import json

import pyarrow
import pyarrow.parquet
import pytest

from core.recipes import RecipeError, parse_recipe
from core.tasks.items import ItemError
from core.tasks.sources import load_items


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    place = tmp_path / "owner" / "sums"
    place.mkdir(parents=True)
    rows = [{"q": "1+1?", "sol": "it is\n#### 2", "n": 7}, {"q": "2+2?", "sol": "so\n#### 4", "n": 8}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), place / "train.parquet")
    code = tmp_path / "owner" / "code"
    code.mkdir()
    tests = {"type": "assert", "test_list": ["assert f() == 1"]}
    lines = [{"q": "Write f.", "t": ["assert f() == 1"], "j": json.dumps(tests)}]
    (code / "test.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


def load(folder, name, split="train", **options):
    return load_items(name, split, options, folder)


def test_columns_become_items(folder):
    items = load(folder, "hub:owner/sums", prompt="q", answer="sol", answer_after="####", id="n")
    assert [(item.id, item.prompt, item.answer) for item in items] == [("7", "1+1?", "2"), ("8", "2+2?", "4")]
    assert (items.verifier, items.split, items.name) == ("math", "train", "hub:owner/sums")
    numbered = load(folder, "hub:owner/sums", prompt="q", answer="n")
    assert [(item.id, item.answer) for item in numbered] == [("0", "7"), ("1", "8")]
    assert numbered.sha256 != items.sha256


@pytest.mark.parametrize("column", ["t", "j"])
def test_tests_may_be_a_list_of_assertions_or_json(folder, column):
    (item,) = load(folder, "hub:owner/code", "test", prompt="q", tests=column)
    assert (item.verifier, item.tests["type"], item.tests["test_list"]) == ("code", "assert", ["assert f() == 1"])


@pytest.mark.parametrize(
    ("name", "split", "options", "told"),
    [
        (
            "hub:owner/sums",
            "train",
            {"prompt": "question", "answer": "sol"},
            r"options\.prompt.*'question'; the columns are q, sol, n",
        ),
        ("hub:owner/sums", "dev", {"prompt": "q", "answer": "sol"}, "cannot be read.*check its files and the split"),
        ("hub:owner/sums", "train", {"prompt": "q", "answer": "sol", "answer_after": "=>"}, "row 0: .*marker '=>'"),
        ("hub:owner/sums", "train", {"prompt": "q", "tests": "sol"}, "row 0: the tests are no JSON"),
        (
            "hub:owner/none",
            "train",
            {"prompt": "q", "answer": "sol"},
            "put its files into owner/none in the items folder",
        ),
        ("hub:../sums", "train", {"prompt": "q", "answer": "sol"}, "not of the form hub:OWNER/NAME"),
        ("hub:owner/sums", "train", {"answer": "sol"}, "column of the prompt is not named"),
    ],
)
def test_what_cannot_be_read_is_named(folder, name, split, options, told):
    with pytest.raises(ItemError, match=told):
        load(folder, name, split, **options)


@pytest.mark.parametrize(
    ("data", "param"),
    [
        ({"dataset": "hub:owner", "options": {}}, "data.dataset"),
        ({"dataset": "hub:owner/sums", "options": {"prompt": "q"}}, "data.options.answer"),
        ({"dataset": "hub:owner/sums", "options": {"prompt": 3, "answer": "a"}}, "data.options.prompt"),
        ({"dataset": "hub:owner/sums", "options": {"prompt": "q", "answer": "a", "colum": "x"}}, "data.options.colum"),
    ],
)
def test_a_recipe_with_a_wrong_mapping_is_refused_at_the_field(data, param):
    recipe = {"kind": "train", "model": "smollm2-135m", "data": data, "max_steps": 5, "prompts_per_step": 2}
    recipe |= {"num_generations": 4, "max_completion_length": 32, "device": {"kind": "cpu"}}
    with pytest.raises(RecipeError) as refused:
        parse_recipe(recipe)
    assert refused.value.param == param


def test_looks_name_suites_without_options_so_the_hub_is_refused_there():
    recipe = {"kind": "train", "model": "smollm2-135m", "data": "gsm8k", "max_steps": 5, "prompts_per_step": 2}
    recipe |= {"num_generations": 4, "max_completion_length": 32, "device": {"kind": "cpu"}}
    with pytest.raises(RecipeError, match="needs options") as refused:
        parse_recipe({**recipe, "looks": {"every": 5, "suites": ["holdout", "hub:owner/sums"]}})
    assert refused.value.param == "looks.suites.1"
