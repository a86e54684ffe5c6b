"""`driftline grade` on real graders: verdict lines for people and programs, and bad lines named."""

import io
import json

import pytest

from client.cli import main


def write(folder, *rows):
    path = folder / "answers.jsonl"
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return str(path)


def lines(capsys):
    captured = capsys.readouterr()
    return [json.loads(line) for line in captured.out.splitlines()], captured.err


MATH = [
    {"id": "a", "gold": "2/3", "prediction": r"so \boxed{\frac{2}{3}}", "equal": True},
    {"id": "b", "gold": "5", "prediction": "The answer is 5.", "equal": True, "note": "ignored"},
    {"id": "c", "gold": "5", "prediction": "hm", "equal": True},
]


def test_math_lines_get_verdicts_in_order(tmp_path, capsys):
    assert main(["grade", "--kind", "math", write(tmp_path, *MATH), "--json"]) == 0
    verdicts, summary = lines(capsys)
    assert [(one["id"], one["verdict"]) for one in verdicts] == [("a", "correct"), ("b", "correct"), ("c", "no_answer")]
    assert verdicts[0]["version"].startswith("math/")
    assert "in 2 of 3 lines" in summary


def test_boxed_only_reads_no_sentences(tmp_path, capsys):
    assert main(["grade", write(tmp_path, *MATH), "--boxed-only"]) == 0
    text = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in text] == ["correct", "no_answer", "no_answer"]


def test_code_and_instructions_are_graded_by_their_tests(tmp_path, capsys, monkeypatch):
    tests = {"type": "assert", "test_list": ["assert f(1) == 2"]}
    program = {"id": "p", "tests": tests, "prediction": "```\ndef f(x): return x + 1\n```"}
    assert main(["grade", "--kind", "code", write(tmp_path, program), "--json"]) == 0
    ((verdict,), _) = lines(capsys)
    assert (verdict["verdict"], verdict["version"].split("+")[1]) == ("correct", "bubblewrap")
    no_comma = {"type": "ifeval", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
    answers = [{"id": text, "tests": no_comma, "prediction": text} for text in ("no comma", "a, comma")]
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(json.dumps(row) + "\n" for row in answers)))
    assert main(["grade", "--kind", "instructions", "-", "--json"]) == 0
    verdicts, _ = lines(capsys)
    assert [one["verdict"] for one in verdicts] == ["correct", "wrong"]
    assert verdicts[1]["details"] == {"strict": 0, "loose": 0, "instructions_strict": 0, "instructions_loose": 0}


@pytest.mark.parametrize(
    ("kind", "row", "told"),
    [
        ("math", "{\n", "line 1: not JSON"),
        ("math", "[1]\n", "each line is one JSON object"),
        ("math", {"id": "a", "prediction": "x"}, "field 'gold' must be a string"),
        ("math", {"id": "a", "gold": 5, "prediction": "x"}, "field 'gold' must be a string"),
        ("math", {"id": "a", "gold": "5"}, "field 'prediction'"),
        ("code", {"id": "a", "prediction": "x"}, "'tests.type' must be one of"),
        ("code", {"id": "a", "prediction": "x", "tests": {"type": "assert", "test_list": []}}, "tests.test_list"),
        (
            "code",
            {
                "id": "a",
                "prediction": "x",
                "tests": {"type": "ifeval", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]},
            },
            "code grades humaneval, assert, stdio, livecodebench",
        ),
    ],
)
def test_bad_lines_are_named_with_what_is_needed(tmp_path, capsys, kind, row, told):
    assert main(["grade", "--kind", kind, write(tmp_path, row)]) == 1
    assert told in capsys.readouterr().err


def test_a_missing_file_is_named(tmp_path, capsys):
    assert main(["grade", str(tmp_path / "none.jsonl")]) == 1
    assert "none.jsonl cannot be read" in capsys.readouterr().err
