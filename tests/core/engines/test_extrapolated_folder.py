"""Combined checkpoints as folders: what is linked, what is written, what is refused. No engine is started."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from core.engines.extrapolated_folder import check_pair, main, write_combined
from core.engines.models import ModelError, save_model
from core.engines.references import ModelSource


@pytest.fixture
def write(tmp_path, build_llama, tokenizer):
    """Write a model folder and return it as a source."""

    def written(name, model=None, words=tokenizer):
        folder = tmp_path / name
        folder.mkdir()
        save_model(model or build_llama(seed=len(name)), folder, torch.float32)
        words.save_pretrained(str(folder))
        return ModelSource(folder, f"run:aaaa/{name}", f"{name}-hash")

    return written


def test_weights_are_links_and_alpha_is_the_only_tensor_of_its_own(write, tmp_path):
    a, b = write("first"), write("later")
    (b.folder / "optimizer.safetensors").write_bytes(b"not a weight")
    write_combined(tmp_path / "both", a, b, 1.5)
    for side, source in (("a", a), ("b", b)):
        linked = tmp_path / "both" / side
        assert (linked / "model.safetensors").samefile(source.folder / "model.safetensors")
        assert sorted(file.name for file in linked.iterdir()) == [
            "config.json",
            "generation_config.json",
            "model.safetensors",
        ]
    alpha = load_file(tmp_path / "both" / "model.safetensors")
    assert {name: (value.item(), value.dtype) for name, value in alpha.items()} == {"alpha": (1.5, torch.float32)}


def test_the_folder_says_what_it_is_and_where_it_comes_from(write, tmp_path):
    write_combined(tmp_path / "both", write("first"), write("later"), 1.5)
    config = json.loads((tmp_path / "both" / "config.json").read_text())
    assert config["architectures"] == ["DriftlineExtrapolatedForCausalLM"]
    assert config["text_config"]["architectures"] == ["LlamaForCausalLM"]
    assert config["text_config"]["num_hidden_layers"] == 2
    assert json.loads((tmp_path / "both" / "extrapolation.json").read_text()) == {
        "combination": "lerp(logits of a, logits of b, alpha)",
        "a": {"model": "run:aaaa/first", "sha256": "first-hash"},
        "b": {"model": "run:aaaa/later", "sha256": "later-hash"},
        "alpha": 1.5,
    }
    assert (tmp_path / "both" / "tokenizer.json").is_file()


def test_transformers_does_not_take_it_for_one_of_its_halves(write, tmp_path):
    write_combined(tmp_path / "both", write("first"), write("later"), 1.5)
    with pytest.raises(ValueError, match="driftline_extrapolated"):
        AutoModelForCausalLM.from_pretrained(str(tmp_path / "both"), local_files_only=True)


def test_weights_on_another_file_system_are_linked_by_name(write, tmp_path, monkeypatch):
    a, b = write("first"), write("later")

    def refuse(*_):
        raise OSError("Invalid cross-device link")

    monkeypatch.setattr("core.engines.extrapolated_folder.os.link", refuse)
    write_combined(tmp_path / "both", a, b, 1.5)
    assert (tmp_path / "both" / "a" / "model.safetensors").readlink() == a.folder / "model.safetensors"


def test_two_architectures_are_refused_by_the_field_that_differs(write, build_llama, tmp_path):
    narrow, wide = write("narrow"), write("wider", build_llama(rms_norm_eps=1e-3))
    with pytest.raises(ModelError, match=r"rms_norm_eps is 1e-06 in a and 0\.001 in b"):
        check_pair(narrow.folder, wide.folder)


def test_two_tokenizers_are_refused(write, build_tokenizer):
    other = build_tokenizer()
    other.add_tokens(["<another>"])
    with pytest.raises(ModelError, match=r"differ in 1 entries, such as '<another>'"):
        check_pair(write("first").folder, write("later", words=other).folder)


def test_a_family_without_a_class_is_refused(write, tmp_path):
    config = GPT2Config(vocab_size=128, n_embd=16, n_layer=1, n_head=1, n_positions=64)
    a, b = write("first", GPT2LMHeadModel(config)), write("later", GPT2LMHeadModel(config))
    with pytest.raises(ModelError, match="gpt2 cannot be combined for vLLM; supported: llama, qwen2, qwen3, qwen3_moe"):
        write_combined(tmp_path / "both", a, b, 1.5)
    assert not (tmp_path / "both").exists()


def test_an_existing_folder_is_not_written_over(write, tmp_path):
    with pytest.raises(ModelError, match="exists already"):
        write_combined(tmp_path, write("first"), write("later"), 1.5)


def test_one_is_written_from_the_command_line(write, tmp_path):
    a, b = write("first"), write("later")
    main([str(a.folder), str(b.folder), "2", str(tmp_path / "both")])
    assert load_file(tmp_path / "both" / "model.safetensors")["alpha"].item() == 2.0
