"""Commands about evaluations against a real api: ids, comparison, grading again, and files of records."""

import io
import json

import pyarrow.parquet as pq
import pytest

from client.cli import main


def told(capsys, *arguments, status=0):
    assert main(arguments) == status
    return capsys.readouterr().out


def test_evaluations_are_listed_with_ids_and_accuracy(capsys, finished):
    lines = told(capsys, "evals", finished.id).splitlines()
    assert lines[1].split()[:4] == [finished.base, "base", "0", "smollm2-135m"]
    assert "80.00 %" in lines[1]
    assert json.loads(told(capsys, "evals", finished.id, "--json"))["data"][0]["id"] == finished.base


def test_two_evaluations_are_compared_beside_the_noise_floor(capsys, finished):
    text = told(capsys, "compare", finished.base, finished.look_evaluations[1])
    assert "+0.00 points" in text
    assert "exact McNemar, two-sided" in text
    assert "item-3, item-6" in text
    assert "two evaluations of one model: " in text
    found = json.loads(told(capsys, "compare", finished.base, finished.look_evaluations[1], "--json"))
    assert (found["lost"], found["gained"]) == (2, 2)


def test_evaluations_that_cannot_be_compared_are_refused(capsys, finished):
    assert main(["compare", finished.base, finished.look_evaluations[0], "--verdicts", "math/9"]) == 5
    assert "not graded by version math/9" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["parquet", "jsonl", "lm_eval"])
def test_records_are_written_under_the_services_name(capsys, finished, tmp_path, monkeypatch, form):
    monkeypatch.chdir(tmp_path)
    name = told(capsys, "export-records", finished.base, "--format", form).split()[0]
    data = (tmp_path / name).read_bytes()
    count = pq.read_table(io.BytesIO(data)).num_rows if form == "parquet" else len(data.splitlines())
    assert count == 10
    assert (f"records-{finished.base}." in name) is (form != "lm_eval")
    assert not list(tmp_path.glob(".*.part"))


def test_rollouts_are_written_where_asked(capsys, build, tmp_path):
    fence = build.running()
    build.rollouts(fence, 1, [1.0, 0.0])
    build.rollouts(fence, 2, [1.0, 1.0])
    file = tmp_path / "samples.jsonl"
    told(capsys, "export-rollouts", fence.run_id, "--format", "jsonl", "--step", "2", "-o", str(file))
    assert [json.loads(line)["step"] for line in file.read_text().splitlines()] == [2, 2]
    assert main(["export-rollouts", fence.run_id, "-o", str(tmp_path / "no" / "folder.parquet")]) == 1
    assert "cannot write" in capsys.readouterr().err


def test_regrade_posts_a_run_that_names_the_evaluation(capsys, finished):
    run = json.loads(told(capsys, "regrade", finished.base, "--detach", "--json"))
    assert (run["kind"], run["recipe"]["regrade"]) == ("eval", finished.base)
    assert main(["regrade", "ffffffffffff", "-d"]) == 1
    assert "no evaluation" in capsys.readouterr().err
