import dataclasses
import hashlib
import json
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Gemma2Config, Gemma2ForCausalLM, GPT2Config, GPT2LMHeadModel

from core.engines import models
from core.engines.models import (
    ModelError,
    body_and_head,
    load_model,
    load_tokenizer,
    load_weights_into,
    named_weights,
    resolve_model,
    save_model,
    stop_token_ids,
    text_decoder,
    weights_sha256,
)
from core.settings import Settings

IDS = torch.tensor([[1, 20, 30, 40, 50]])


@pytest.fixture
def settings(tmp_path):
    (tmp_path / "models").mkdir()
    base = Settings.from_env({"DRIFTLINE_HOME": str(tmp_path / "home")})
    return dataclasses.replace(base, models_dir=tmp_path / "models")


def _save(model, tokenizer, folder, dtype=torch.float32):
    folder.mkdir(parents=True)
    save_model(model, folder, dtype)
    tokenizer.save_pretrained(str(folder))
    return folder


@pytest.mark.parametrize("tied", [True, False])
def test_a_saved_model_loads_with_identical_logits_hash_and_keys(build_llama, tokenizer, tmp_path, tied):
    model = build_llama(tied=tied)
    model.save_pretrained(str(tmp_path / "theirs"))
    folder = _save(model, tokenizer, tmp_path / "ours")
    loaded = load_model(folder, torch.float32, "cpu")
    with torch.no_grad():
        assert torch.equal(loaded(IDS).logits, model(IDS).logits)
    weights = load_file(str(folder / "model.safetensors"))
    assert set(weights) == set(load_file(str(tmp_path / "theirs" / "model.safetensors"))) == set(named_weights(model))
    assert ("lm_head.weight" in weights) is not tied
    assert weights_sha256(weights) == weights_sha256(named_weights(model)) == weights_sha256(named_weights(loaded))
    assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) is tied
    assert not loaded.training


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda weights: weights.pop("model.layers.1.mlp.up_proj.weight"),
            "are missing: model.layers.1.mlp.up_proj.weight",
        ),
        (
            lambda weights: weights.update({"model.norm.weight": torch.zeros(3)}),
            "have another shape: model.norm.weight",
        ),
    ],
)
def test_weights_that_do_not_fill_the_model_are_refused_and_never_drawn_at_random(
    llama, tokenizer, tmp_path, change, told
):
    folder = _save(llama, tokenizer, tmp_path / "m")
    weights = load_file(str(folder / "model.safetensors"))
    change(weights)
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    with pytest.raises(ModelError, match=f"the weights in m .*{re.escape(told)}"):
        load_model(folder, torch.float32, "cpu")


def test_weights_that_are_cut_short_are_refused_by_folder(llama, tokenizer, tmp_path):
    file = _save(llama, tokenizer, tmp_path / "m") / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(ModelError, match="the weights in m cannot be read"):
        load_model(tmp_path / "m", torch.float32, "cpu")


def test_transformers_itself_loads_what_was_saved(llama, tokenizer, tmp_path):
    folder = _save(llama, tokenizer, tmp_path / "m", torch.bfloat16)
    loaded = AutoModelForCausalLM.from_pretrained(str(folder))
    assert loaded.dtype == torch.bfloat16
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]
    assert load_tokenizer(folder)("ab").input_ids == tokenizer("ab").input_ids


def test_saving_leaves_the_live_model_as_it_was(llama, tokenizer, tmp_path):
    before, config = weights_sha256(named_weights(llama)), llama.config.to_dict()
    _save(llama, tokenizer, tmp_path / "m", torch.bfloat16)
    assert weights_sha256(named_weights(llama)) == before
    assert llama.config.to_dict() == config


def test_the_hash_is_of_names_types_shapes_and_bytes():
    tensors = {"b": torch.tensor([[1.0, 2.0]]), "a": torch.tensor([3], dtype=torch.int32)}
    by_hand = hashlib.sha256(
        b"driftline/weights/1\n"
        b'["a", "int32", [1]]\n\x03\x00\x00\x00'
        b'["b", "float32", [1, 2]]\n\x00\x00\x80\x3f\x00\x00\x00\x40'
    ).hexdigest()
    assert weights_sha256(tensors) == by_hand
    assert weights_sha256(list(tensors.items())[::-1]) == by_hand


@pytest.mark.parametrize(
    "change",
    [
        {"a": torch.tensor([1.0, 2.5])},
        {"a": torch.tensor([[1.0], [2.0]])},
        {"a": torch.tensor([1.0, 2.0], dtype=torch.float64)},
        {"c": torch.tensor([1.0, 2.0])},
        {"a": torch.tensor([1.0, 2.0]), "c": torch.tensor([1.0])},
    ],
)
def test_any_change_changes_the_hash(change):
    assert weights_sha256(change) != weights_sha256({"a": torch.tensor([1.0, 2.0])})


def test_bf16_and_non_contiguous_tensors_can_be_hashed():
    tensor = torch.arange(6.0).reshape(2, 3)
    assert weights_sha256({"a": tensor.T}) == weights_sha256({"a": tensor.T.contiguous()})
    assert weights_sha256({"a": tensor.bfloat16()}) != weights_sha256({"a": tensor})


def test_weights_are_loaded_in_place_and_seen_by_every_holder(build_llama, tokenizer, tmp_path):
    folder = _save(build_llama(seed=3), tokenizer, tmp_path / "m")
    model = build_llama(seed=4)
    held = {name: parameter.data_ptr() for name, parameter in model.named_parameters()}
    load_weights_into(model, folder)
    assert {name: parameter.data_ptr() for name, parameter in model.named_parameters()} == held
    assert weights_sha256(named_weights(model)) == weights_sha256(named_weights(build_llama(seed=3)))
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_sharded_folders_are_read(build_llama, tmp_path):
    build_llama(seed=3).save_pretrained(str(tmp_path), max_shard_size="20KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    model = build_llama(seed=4)
    load_weights_into(model, tmp_path)
    assert weights_sha256(named_weights(model)) == weights_sha256(named_weights(build_llama(seed=3)))


@pytest.mark.parametrize("fault", ["missing", "unknown", "shape"])
def test_weights_that_do_not_fit_change_nothing(build_llama, tokenizer, tmp_path, fault):
    file = _save(build_llama(seed=3), tokenizer, tmp_path / "m") / "model.safetensors"
    weights = load_file(str(file))
    name = "model.norm.weight"
    weights |= {"missing": {}, "unknown": {"extra.weight": torch.zeros(1)}, "shape": {name: torch.zeros(5)}}[fault]
    if fault == "missing":
        del weights[name]
    save_file(weights, str(file))
    model = build_llama(seed=4)
    before = weights_sha256(named_weights(model))
    with pytest.raises(ModelError, match="extra.weight" if fault == "unknown" else name):
        load_weights_into(model, tmp_path / "m")
    assert weights_sha256(named_weights(model)) == before


@pytest.mark.parametrize("tied", [True, False])
def test_body_times_head_is_the_models_logits(build_llama, tied):
    model = build_llama(tied=tied)
    body, weight_VH, is_tied = body_and_head(model)
    hidden_BTH = body(input_ids=IDS).last_hidden_state
    assert hidden_BTH.shape == (1, 5, 32)
    assert weight_VH is model.lm_head.weight
    assert is_tied is tied
    torch.testing.assert_close(hidden_BTH @ weight_VH.T, model(IDS).logits, atol=1e-5, rtol=0)


def test_soft_capped_logits_are_refused():
    config = Gemma2Config(
        vocab_size=32,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=8,
        final_logit_softcapping=30.0,
    )
    with pytest.raises(ModelError, match=r"final_logit_softcapping=30\.0"):
        body_and_head(Gemma2ForCausalLM(config))
    config.final_logit_softcapping = None
    body_and_head(Gemma2ForCausalLM(config))


def test_scaled_logits_and_heads_with_a_bias_are_refused(llama):
    llama.config.logit_scale = 0.5
    with pytest.raises(ModelError, match=r"logit_scale=0\.5"):
        body_and_head(llama)
    del llama.config.logit_scale
    llama.lm_head = torch.nn.Linear(32, 128, bias=True)
    with pytest.raises(ModelError, match="bias"):
        body_and_head(llama)


def test_forward_and_backward_are_bit_identical_from_call_to_call(llama, tokenizer, tmp_path):
    model = load_model(_save(llama, tokenizer, tmp_path / "m"), torch.float32, "cpu")
    gradients = []
    for _ in range(2):
        model.zero_grad()
        model(torch.arange(1, 61).reshape(2, 30)).logits.logsumexp(-1).sum().backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_local_folders_resolve_under_the_model_folder(llama, tokenizer, settings):
    folder = _save(llama, tokenizer, settings.models_dir / "org" / "tiny")
    assert resolve_model("org/tiny", settings, {}) == folder
    assert resolve_model(str(folder), settings, {}) == folder


@pytest.mark.parametrize("ref", ["../outside", "org/../../outside", "/etc", "{models}/../outside"])
def test_names_that_leave_the_model_folder_are_refused(settings, ref, tmp_path):
    (tmp_path / "outside").mkdir()
    with pytest.raises(ModelError, match="outside the operator's model folder"):
        resolve_model(ref.format(models=settings.models_dir), settings, {})


def test_a_link_out_of_the_model_folder_is_not_followed(llama, tokenizer, settings, tmp_path):
    (settings.models_dir / "link").symlink_to(_save(llama, tokenizer, tmp_path / "outside"))
    with pytest.raises(ModelError):
        resolve_model("link", settings, {})


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors", "tokenizer.json"])
def test_an_incomplete_folder_is_refused_naming_the_file(llama, tokenizer, settings, missing):
    (_save(llama, tokenizer, settings.models_dir / "tiny") / missing).unlink()
    with pytest.raises(ModelError, match=f"has no {missing}"):
        resolve_model("tiny", settings, {})


def test_a_missing_shard_is_named(build_llama, tokenizer, settings):
    folder = settings.models_dir / "tiny"
    build_llama().save_pretrained(str(folder), max_shard_size="20KB")
    tokenizer.save_pretrained(str(folder))
    shard = sorted(folder.glob("model-*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(ModelError, match=shard.name):
        resolve_model("tiny", settings, {})


def test_run_references_are_left_to_the_store(settings):
    with pytest.raises(ModelError, match="through the store"):
        resolve_model("run:7f3a/best", settings, {})


def test_an_unknown_name_is_refused_with_what_is_allowed(settings):
    with pytest.raises(ModelError, match=r"smollm2-135m.*ORG/NAME.*run:ID"):
        resolve_model("nonsense", settings, {})


def test_hub_names_come_from_the_local_cache_and_are_never_downloaded_unasked(settings, monkeypatch, tmp_path):
    asked = []

    def snapshot(ref, *, local_files_only, allow_patterns):
        from huggingface_hub.errors import LocalEntryNotFoundError

        asked.append((ref, local_files_only))
        raise LocalEntryNotFoundError("not there")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    for env in ({}, {"DRIFTLINE_HUB": "0"}, {"DRIFTLINE_HUB": "1"}):
        with pytest.raises(ModelError, match="not in the local Hugging Face cache"):
            resolve_model("org/absent", settings, env)
    assert asked == [("org/absent", True), ("org/absent", True), ("org/absent", False)]


def test_a_model_in_the_local_hub_cache_is_found(llama, tokenizer, settings, monkeypatch, tmp_path):
    snapshot = tmp_path / "hub" / "models--org--tiny" / "snapshots" / ("a" * 40)
    _save(llama, tokenizer, snapshot)
    (tmp_path / "hub" / "models--org--tiny" / "refs").mkdir()
    (tmp_path / "hub" / "models--org--tiny" / "refs" / "main").write_text("a" * 40)
    from huggingface_hub import snapshot_download

    monkeypatch.setattr(
        "huggingface_hub.snapshot_download",
        lambda ref, **options: snapshot_download(ref, cache_dir=tmp_path / "hub", **options),
    )
    assert resolve_model("org/tiny", settings, {}) == snapshot


def test_the_bundled_model_is_prepared_in_its_own_folder(settings, monkeypatch):
    monkeypatch.setattr(models.smollm2, "prepare", lambda target: target / "asked")
    assert resolve_model("smollm2-135m", settings, {}) == settings.home / "models" / "smollm2-135m" / "asked"


def test_gpt2_with_its_learned_positions_has_a_body_and_a_head():
    model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_embd=8, n_layer=1, n_head=1, n_positions=16))
    body, weight, tied = body_and_head(model)
    ids = torch.tensor([[1, 2, 3]])
    model.eval()
    torch.testing.assert_close(body(input_ids=ids).last_hidden_state @ weight.T, model(ids).logits)
    assert tied


def test_a_copy_of_a_folder_has_the_same_hash(llama, tokenizer, tmp_path):
    folder = _save(llama, tokenizer, tmp_path / "m")
    shutil.copytree(folder, tmp_path / "copy")
    loaded = load_model(tmp_path / "copy", torch.float32, "cpu")
    assert weights_sha256(named_weights(loaded)) == weights_sha256(named_weights(llama))


@pytest.mark.parametrize(("configured", "expected"), [(5, (2, 5)), ([9, 5], (2, 5, 9)), (None, (2,))])
def test_every_configured_end_and_the_tokenizers_own_stop_a_completion(llama, tokenizer, configured, expected):
    llama.generation_config.eos_token_id = configured
    assert stop_token_ids(llama, tokenizer) == expected


def test_display_text_leaves_special_tokens_out(tokenizer):
    ids = tokenizer("a b", add_special_tokens=False).input_ids
    assert text_decoder(tokenizer)([1, *ids, 2]) == "a b"
