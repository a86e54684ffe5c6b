"""Exports of a tiny run's checkpoints, each loaded as its users load it and asked its stored answers again."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from core.engines.models import ModelError, load_model, load_tokenizer, named_weights, save_model
from core.engines.references import find_checkpoint
from core.jobs import UserError
from core.store import analyses, checkpoints
from core.tasks.pool import VerifierPool
from core.weights import verifying
from core.weights.adapter import decomposed
from core.weights.gguf_file import write_gguf
from core.weights.job import run_weights
from tests.core.engines.conftest import SPECIALS
from tests.core.train.service import Service
from tests.core.train.test_resume import trained


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE, which is what a GGUF file of these families holds: the bytes, two merges, and special tokens."""
    merges = [("t", "h"), ("th", "e")]
    tokens = [*SPECIALS, *sorted(pre_tokenizers.ByteLevel.alphabet()), "th", "the"]
    inner = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    inner.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        additional_special_tokens=SPECIALS[4:],
    )


def small_llama(vocab_size: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab_size, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.25, tie_word_embeddings=True,
        bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, pool: VerifierPool) -> tuple[Service, str]:
    """A run of two steps with a look at the last."""
    service = Service(tmp_path_factory.mktemp("exports"))
    tokenizer = byte_tokenizer()
    tokenizer.save_pretrained(service.settings.models_dir / "tiny")
    small_llama(len(tokenizer) + 3).save_pretrained(service.settings.models_dir / "tiny")
    looks = {"every": 2, "m": 20, "base_runs": 2}
    return service, trained(service, pool, max_steps=2, save={"every": 1}, looks=looks, damage_stop=None)


def exported(service: Service, run_id: str, **block: Any) -> tuple[str, dict[str, Any], Path]:
    compute = [{"name": "export", "export": block}]
    made = service.post_recipe({"kind": "analysis", "run": f"run:{run_id}", "compute": compute})
    context = service.attempt(made)
    outcome = run_weights(context)
    assert outcome.state == "succeeded", outcome
    service.finish(context, outcome)
    with service.db.read() as session:
        [row] = analyses.list_for_run(session, made)
        checkpoint = checkpoints.latest(session, made)
        named = {file.name for file in checkpoints.files(session, checkpoint.id)}
    folder = service.settings.home / checkpoint.path
    assert named == {path.name for path in folder.iterdir()}
    return made, row.result, folder


def test_a_folder_in_bf16_answers_as_its_checkpoint_and_can_be_named_as_a_model(home: Any) -> None:
    service, run_id = home
    made, result, folder = exported(service, run_id, step=2)
    assert result["verified"]["records"] == 20
    assert result["verified"]["source"] == "stored"
    assert result["verified"]["prefix"] > 0.6
    weights = load_file(folder / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    with service.db.read() as session:
        source = service.settings.home / checkpoints.at_step(session, run_id, 2).path
        assert find_checkpoint(session, f"run:{made}/step-2").provenance["of"]["run"] == run_id
    exact = load_file(source / "model.safetensors")
    assert weights.keys() == exact.keys()
    assert all(torch.equal(tensor, exact[name].bfloat16()) for name, tensor in weights.items())
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"


def test_an_fp32_export_gives_every_stored_answer_again(home: Any) -> None:
    _, result, _ = exported(*home, step=2, dtype="float32")
    assert result["verified"] == {"source": "stored", "records": 20, "same": 20, "share_same": 1.0, "prefix": 1.0}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_gguf_file_holds_the_same_model(home: Any, dtype: str) -> None:
    service, run_id = home
    made, result, folder = exported(service, run_id, step=2, format="gguf", dtype=dtype)
    assert result["verified"]["records"] == 20
    assert result["verified"]["prefix"] > (0.6 if dtype == "bfloat16" else 0.95)
    assert result["verified"]["share_same"] == 1.0 or dtype != "float32"
    assert result["pre_tokenizer"] == "smollm"
    assert result["verified"]["tokenizes_alike"] == 1.0
    assert {path.name for path in folder.iterdir()} == {"model.gguf", "manifest.json", "trainer_state.json"}
    with service.db.read() as session, pytest.raises(ModelError, match="export as gguf"):
        find_checkpoint(session, f"run:{made}/last")


def test_an_adapter_is_the_nearest_of_its_rank_and_says_what_it_leaves_out(home: Any) -> None:
    service, run_id = home
    _, full, folder = exported(service, run_id, step=2, format="adapter", rank=64)
    _, low, _ = exported(service, run_id, step=2, format="adapter", rank=2)
    assert full["relative_error"] < 1e-4 < low["relative_error"] < 1
    assert 0 < full["left_out"] < 1
    assert len(low["worst"]) == 5
    assert json.loads((folder / "adapter_config.json").read_text())["r"] == 64
    assert full["verified"]["records"] == 20


@pytest.mark.parametrize("shape", [(6, 9), (9, 6)])
def test_the_decomposition_is_numpys_truncated_one(shape: tuple[int, int]) -> None:
    torch.manual_seed(1)
    change = torch.randn(shape)
    b, a = decomposed(change, 3)
    singular = torch.linalg.svdvals(change.double())
    assert (b.shape, a.shape) == ((shape[0], 3), (3, shape[1]))
    missed = (change.double() - b.double() @ a.double()).norm()
    assert float(missed) == pytest.approx(float(singular[3:].norm()), rel=1e-5)
    b, a = decomposed(change, 40)
    torch.testing.assert_close(b @ a, change, rtol=1e-4, atol=1e-5)


def test_a_large_map_is_decomposed_nearly_as_well() -> None:
    torch.manual_seed(2)
    change = torch.randn(1100, 8) @ torch.randn(8, 1030) + 0.01 * torch.randn(1100, 1030)
    b, a = decomposed(change, 8)
    assert float((change - b @ a).norm() / change.norm()) < 0.01
    again = decomposed(change, 8)
    assert torch.equal(b, again[0])


def test_without_stored_answers_the_checkpoint_is_asked_anew(home: Any) -> None:
    _, result, _ = exported(*home, step=1, dtype="float32", records=4)
    assert result["verified"] == {"source": "fresh", "records": 4, "same": 4, "share_same": 1.0, "prefix": 1.0}


def test_what_was_extrapolated_can_be_exported(home: Any) -> None:
    service, run_id = home
    compute = [{"name": "extrapolate", "extrapolation": {"a": 0, "betas": [1.5], "evaluate": False}}]
    made = service.post_recipe({"kind": "analysis", "run": f"run:{run_id}", "compute": compute})
    context = service.attempt(made)
    service.finish(context, run_weights(context))
    _, result, _ = exported(service, made, step=3, format="gguf", dtype="float32", records=3)
    assert result["verified"]["same"] == 3


def test_a_step_that_is_not_there_is_refused_with_those_that_are(home: Any) -> None:
    service, run_id = home
    compute = [{"name": "export", "export": {"step": 9}}]
    context = service.attempt(service.post_recipe({"kind": "analysis", "run": f"run:{run_id}", "compute": compute}))
    with pytest.raises(UserError, match="it has 0, 1, 2"):
        run_weights(context)
    service.lost(context)


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_qwen_models_come_back_from_gguf_with_their_logits(home: Any, family: str, tmp_path: Path) -> None:
    service, _ = home
    torch.manual_seed(3)
    tokenizer = load_tokenizer(service.settings.models_dir / "tiny")
    sizes: dict[str, Any] = {
        "vocab_size": len(tokenizer) + 3, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    }  # fmt: skip
    if family == "qwen2":
        model = Qwen2ForCausalLM(Qwen2Config(**sizes, tie_word_embeddings=True))
    else:
        # The file states the head's size; transformers' reader takes Qwen3's own, 128, whatever is stated.
        model = Qwen3ForCausalLM(Qwen3Config(**sizes, head_dim=128, tie_word_embeddings=False))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    folder, out = tmp_path / "hf", tmp_path / "gguf"
    folder.mkdir()
    out.mkdir()
    save_model(model, folder, torch.float32)
    tokenizer.save_pretrained(str(folder))
    write_gguf(out / "model.gguf", folder, "float32", name="qwen", on_tensor=lambda done, total: None)
    loaded, _ = verifying.load_gguf(out, torch.float32, torch.device("cpu"))
    source = load_model(folder, torch.float32, "cpu")
    assert named_weights(loaded).keys() == named_weights(source).keys()
    ids = torch.arange(1, 20)[None]
    torch.testing.assert_close(loaded(input_ids=ids).logits, source(input_ids=ids).logits, rtol=1e-5, atol=1e-5)


def test_what_a_gguf_file_cannot_hold_is_refused_by_name(home: Any, tmp_path: Path) -> None:
    service, run_id = home
    with service.db.read() as session:
        source = service.settings.home / checkpoints.at_step(session, run_id, 1).path
    folder = tmp_path / "odd"
    folder.mkdir()
    for path in source.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    for change, said in (({"model_type": "mamba"}, "mamba"), ({"rope_parameters": {"rope_type": "yarn"}}, "yarn")):
        (folder / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(ModelError, match=said):
            write_gguf(tmp_path / "x.gguf", folder, "float32", name="x", on_tensor=lambda done, total: None)
