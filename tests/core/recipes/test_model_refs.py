"""References to models: their forms, the names known, and the operator's folder."""

from pathlib import Path
from typing import Any

import pytest

from core.recipes import RecipeError, check_model, load_recipe, local_models, parse_recipe


@pytest.fixture
def models_dir(tmp_path: Path) -> Path:
    for name in ("mine", "acme/small", "empty"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "mine" / "config.json").write_text("{}")
    (tmp_path / "acme" / "small" / "config.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize("ref", [
    "smollm2-135m", "Qwen/Qwen2.5-0.5B", "meta-llama/Llama-3.2-1B-Instruct", "nvidia/OpenMath-Nemotron-1.5B",
    "run:7f3a/best", "run:0123456789ab/last", "run:7f3a/step-0", "run:7f3a/step-120",
])  # fmt: skip
def test_known_references_are_accepted(ref: str, train: dict[str, Any]) -> None:
    assert parse_recipe({**train, "model": ref}).model == ref


@pytest.mark.parametrize("ref", [
    "", "mine", "acme/small", "qwen/qwen2.5-0.5b", "a/b/c", "/models/x", "../x", "a/../b", "a b", "https://x/y",
    "run:7f3a", "run:7F3A/best", "run:7f3a/step-01", "run:7f3a/step--1", "run:7f3a/first", "run:xyz1/best", "run:abc/best",
    "base",
])  # fmt: skip
def test_other_references_are_refused(ref: str, train: dict[str, Any], problems: Any) -> None:
    assert list(problems({**train, "model": ref})) == ["model"]


def test_the_operators_folders_are_accepted_when_named(train: dict[str, Any], models_dir: Path, problems: Any) -> None:
    known = local_models(models_dir)
    assert known == ("acme/small", "mine")
    for name in known:
        assert parse_recipe({**train, "model": name}, known_models=known).model == name
    assert "mine" in problems({**train, "model": "empty"}, known_models=known)["model"].hint


def test_a_stored_recipe_is_not_looked_up_again(train: dict[str, Any]) -> None:
    assert load_recipe({**train, "model": "acme/small"}).model == "acme/small"
    with pytest.raises(RecipeError):
        load_recipe({**train, "model": "../small"})


def test_check_model_looks_into_the_folder(models_dir: Path) -> None:
    check_model("mine", models_dir)
    check_model("Qwen/Qwen3-0.6B", None)
    check_model("run:7f3a/best", None)
    with pytest.raises(RecipeError, match="not in the operator's model folder"):
        check_model("empty", models_dir)
    with pytest.raises(RecipeError, match="DRIFTLINE_MODELS is not set"):
        check_model("mine", None)


@pytest.mark.parametrize(
    ("ref", "right"), [("run:7f3a", True), ("run:7f3a/best", False), ("7f3a", False), ("run:", False)]
)
def test_an_analysis_names_a_run(ref: str, right: bool, analysis: dict[str, Any], problems: Any) -> None:
    if right:
        assert parse_recipe({**analysis, "run": ref})
    else:
        assert list(problems({**analysis, "run": ref})) == ["run"]


def test_runs_to_wait_for_are_stored_as_bare_ids(train: dict[str, Any]) -> None:
    assert parse_recipe({**train, "after": ["run:7f3a", "0123456789ab"]}).after == ("7f3a", "0123456789ab")
