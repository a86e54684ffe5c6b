import gzip
import json
import os
from pathlib import Path

import pytest

from core.tasks.items import Item, ItemError, ItemSet, items_hash, normalised_prompt
from core.tasks.sources import data_file, generate_items, load_items, load_suite_items, parse_item, read_items

ROW = {"id": "a", "prompt": "1 + 1?", "answer": "2", "source": "hand", "meta": {"split": "train"}}


def write(folder: Path, name: str, *rows: object) -> Path:
    text = "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n"
    path = folder / name
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz"])
def test_a_file_is_read_in_order_plain_or_packed(tmp_path, name):
    write(tmp_path, name, ROW, "", {**ROW, "id": "b", "prompt": "2 + 2?", "answer": "4"})
    items = load_items(f"file:{name}", "train", {}, tmp_path)
    assert [item.id for item in items] == ["a", "b"]
    assert items[0] == Item("a", "1 + 1?", "2", "math", "hand", None, {"split": "train"})
    assert (items.verifier, items.generated) == ("math", False)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("{", "not one JSON object"),
        ("[1]", "list"),
        ("{\"id\": NaN}", "NaN"),
        ('{"id": "a", "id": "b"}', "'id' is given twice"),
        ({"prompt": "p", "answer": "1"}, "field 'id'"),
        ({**ROW, "prompt": "  "}, "field 'prompt'"),
        ({**ROW, "answer": 72}, "field 'answer' must be a non-empty string"),
        ({**ROW, "answer": ""}, "field 'answer'"),
        ({**ROW, "tests": {"type": "assert", "test_list": ["assert f() == 1"]}}, "exactly one of"),
        ({"id": "a", "prompt": "p"}, "exactly one of"),
        ({"id": "a", "prompt": "p", "tests": {"type": "x"}}, "tests.type"),
        ({**ROW, "gold": "2"}, "unknown field 'gold'"),
        ({**ROW, "meta": []}, "field 'meta'"),
        ({**ROW, "source": 1}, "field 'source'"),
        ("[" * 100_000, "not one JSON object"),
    ],
)  # fmt: skip
def test_a_bad_row_is_refused_with_file_line_and_field(tmp_path, row, said):
    path = write(tmp_path, "bad.jsonl", {**ROW, "id": "first"}, row)
    with pytest.raises(ItemError, match=r"bad\.jsonl line 2") as caught:
        read_items(path, name="bad")
    assert said in str(caught.value)


def test_repeated_ids_bad_bytes_empty_and_mixed_files_are_refused(tmp_path):
    with pytest.raises(ItemError, match="line 2: field 'id' repeats 'a' of line 1"):
        read_items(write(tmp_path, "twice.jsonl", ROW, ROW), name="x")
    (tmp_path / "bytes.jsonl").write_bytes(b'{"id": "\xff"}\n')
    with pytest.raises(ItemError, match="line 1: not UTF-8"):
        read_items(tmp_path / "bytes.jsonl", name="x")
    with pytest.raises(ItemError, match="holds no items"):
        read_items(write(tmp_path, "empty.jsonl"), name="x")
    tests = {"id": "t", "prompt": "p", "tests": {"type": "assert", "test_list": ["assert f() == 1"]}}
    with pytest.raises(ItemError, match="mixes items"):
        read_items(write(tmp_path, "mixed.jsonl", ROW, tests), name="x")
    (tmp_path / "broken.jsonl.gz").write_bytes(gzip.compress(b"{}" * 100)[:20])
    with pytest.raises(ItemError, match="cannot be read"):
        read_items(tmp_path / "broken.jsonl.gz", name="x")


@pytest.mark.parametrize(
    "name", ["../x.jsonl", "a/x.jsonl", "/etc/x.jsonl", "..", "", "x.json", "a\\x.jsonl", "x\0.jsonl"]
)
def test_names_never_leave_the_folder(tmp_path, name):
    with pytest.raises(ItemError, match="file name"):
        data_file(name, tmp_path)


def test_symbolic_links_missing_files_and_a_missing_folder_are_refused(tmp_path):
    write(tmp_path, "real.jsonl", ROW)
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "real.jsonl")
    with pytest.raises(ItemError, match="symbolic link"):
        data_file("link.jsonl", tmp_path)
    with pytest.raises(ItemError, match="DRIFTLINE_DATA"):
        data_file("none.jsonl", tmp_path)
    for load in (
        lambda: load_items("file:x.jsonl"),
        lambda: load_items("gsm8k"),
        lambda: load_suite_items("math500", None),
    ):
        with pytest.raises(ItemError, match="DRIFTLINE_DATA"):
            load()


def test_unknown_names_splits_and_options_say_what_is_allowed(tmp_path):
    with pytest.raises(ItemError, match=r"gsm9k.*allowed.*gsm8k"):
        load_items("gsm9k", data_dir=tmp_path)
    with pytest.raises(ItemError, match=r"no split 'dev'; allowed: train, test"):
        load_items("gsm8k", "dev", data_dir=tmp_path)
    with pytest.raises(ItemError, match="takes no options"):
        load_items("gsm8k", options={"size": 3}, data_dir=tmp_path)
    with pytest.raises(ItemError, match="'nope' is not known"):
        load_suite_items("nope", tmp_path)


def test_a_catalogue_file_with_another_number_of_items_is_refused(tmp_path):
    write(tmp_path, "aime24.jsonl", ROW)
    with pytest.raises(ItemError, match="holds 1 items, but aime24/test has 30"):
        load_suite_items("aime24", tmp_path)


def test_generated_items_repeat_exactly_and_their_ids_carry_their_content():
    options = {"size": 20, "min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    first, again = (load_items("reasoning_gym:chain_sum", options=options, seed=5) for _ in range(2))
    other = load_items("reasoning_gym:chain_sum", options=options, seed=6)
    assert first == again
    assert first.sha256 != other.sha256
    assert not {item.id for item in first} & {item.id for item in other if item.prompt not in {i.prompt for i in first}}
    assert (len(first), first.generated, first.verifier) == (20, True, "reasoning_gym")
    expression = first[0].prompt.rpartition(": ")[2].removesuffix(" =").split()
    left, sign, right = int(expression[0]), expression[1], int(expression[2])
    assert first[0].answer == str(left + right if sign == "+" else left - right)
    seeded = [generate_items("chain_sum", {**options, "seed": 9}, seed=seed).sha256 for seed in (1, 2)]
    assert seeded[0] == seeded[1]


@pytest.mark.parametrize(
    ("task", "options", "said"),
    [
        ("no_such_task", {}, "no task"),
        ("countdown", {}, "evaluates the answer as code"),
        ("chain_sum", {"size": 0}, "size"),
        ("chain_sum", {"size": True}, "size"),
        ("chain_sum", {"seed": "x"}, "seed"),
        ("chain_sum", {"min_terms": 0}, "min_terms"),
        ("chain_sum", {"terms": 3}, "the task's options are"),
    ],
)
def test_bad_generator_options_are_refused(task, options, said):
    with pytest.raises(ItemError, match=said):
        generate_items(task, options, seed=0)


def test_the_hash_follows_content_and_order_and_not_key_order():
    one = parse_item(json.dumps({**ROW, "meta": {"a": 1, "b": 2}}), where="x")
    same = parse_item(json.dumps({**ROW, "meta": {"b": 2, "a": 1}}), where="x")
    two = parse_item(json.dumps({**ROW, "id": "b"}), where="x")
    assert items_hash([one]) == items_hash([same])
    assert len({items_hash([one, two]), items_hash([two, one]), items_hash([one])}) == 3
    with pytest.raises(ItemError, match="two items have the id 'a'"):
        ItemSet((one, one), "x", "math")


def test_prompts_count_as_the_same_but_for_case_space_and_width_only():
    assert (
        normalised_prompt(" What is\n 1 + 1? ")
        == normalised_prompt("what is 1 + 1?")
        == normalised_prompt("What is \N{FULLWIDTH DIGIT ONE} + 1?")
    )
    assert normalised_prompt("4 - 1") != normalised_prompt("4 + 1")


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "split", "count"),
    [("gsm8k", "train", 7473), ("gsm8k", "test", 1319), ("math", "train", 7498), ("math500", "test", 500),
     ("aime24", "test", 30), ("aime25", "test", 30), ("amc23", "test", 40), ("minerva", "test", 272),
     ("olympiadbench", "test", 675), ("dapo_math_17k", "train", 17917), ("dapo_math_en_clean_8k", "train", 8000),
     ("deepscaler_sub", "train", 1208)],
)  # fmt: skip
def test_catalogue_names_load_from_the_items_folder(name, split, count):
    items = load_items(name, split, {}, Path(os.environ["DRIFTLINE_DATA"]))
    assert (len(items), items.verifier) == (count, "math")
