"""Data and prompts that a train run cannot use are refused before its first step."""

from pathlib import Path

import pytest

from core.jobs import UserError
from core.tasks.pool import VerifierPool
from core.train.loop import run_training
from tests.core.train.service import Service


def test_template_arguments_for_a_model_without_a_template_are_named(tmp_path: Path) -> None:
    service = Service(tmp_path)
    run_id = service.post(prompt={"template_kwargs": {"enable_thinking": False}})
    with (
        VerifierPool(workers=1) as pool,
        pytest.raises(UserError, match=r"prompt\.template_kwargs sets enable_thinking") as refused,
    ):
        run_training(service.attempt(run_id), pool)
    assert refused.value.code == "unusable_prompt"
