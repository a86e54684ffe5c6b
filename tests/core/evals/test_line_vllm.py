"""An evaluation run on the line with the real vLLM: through the store, its plan, and a combined folder that is gone after."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from core.evals.job import run_evaluation
from core.store import evaluations
from core.tasks.pool import VerifierPool
from tests.core.engines.conftest import VOCAB, make_tokenizer
from tests.core.train.service import TINY, Service

pytestmark = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.timeout(600)]

SUITE = {
    "suite": "reasoning_gym:chain_sum",
    "items": 4,
    "options": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1, "size": 50},
}


def _write(folder: Path, seed: int) -> None:
    """A tiny model with heads of a size that vLLM has kernels for."""
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=256,
        initializer_range=0.25,
        tie_word_embeddings=True,
        eos_token_id=2,
    )
    torch.manual_seed(seed)
    LlamaForCausalLM(config).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)


def _tokens(service: Service, row: Any) -> list[Any]:
    with service.db.read() as session:
        return [(one.item_id, one.token_ids) for one in evaluations.records_after(session, row.id, None, 100)]


def test_a_sweep_with_vllm_agrees_with_one_with_transformers(tmp_path: Path) -> None:
    service = Service(tmp_path)
    _write(service.settings.models_dir / TINY, 1)
    _write(service.settings.models_dir / "other", 2)
    answers = {}
    with VerifierPool(workers=1) as pool:
        for engine in ("transformers", "vllm"):
            recipe = {
                "kind": "eval",
                "extrapolation": {"a": TINY, "b": "other", "alpha": [0.5, 2]},
                "suites": [SUITE],
                "max_prompt_length": 200,
                "max_completion_length": 8,
                "engine": engine,
                "device": {"kind": "cpu", "memory_gib": 4},
            }
            eval_id = service.post_recipe(recipe)
            outcome = run_evaluation(service.attempt(eval_id), pool)
            assert (outcome.state, outcome.reason) == ("succeeded", "3 evaluations finished")
            with service.db.read() as session:
                rows = evaluations.list_for_run(session, eval_id)
            assert {row.engine["engine"] for row in rows} == {engine}
            answers[engine] = {row.model_ref: _tokens(service, row) for row in rows}
            assert not list(service.settings.run_dir(eval_id).glob("line-*"))
    assert answers["vllm"] == answers["transformers"]
    assert len({str(tokens) for tokens in answers["vllm"].values()}) == 3
