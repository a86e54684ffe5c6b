"""Adapters: what peft makes of the same files, what runs with them leave behind, and that they resume bit for bit."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from core.engines.models import ModelError, load_model
from core.recipes.train import Lora
from core.store import checkpoints, metrics
from core.train import adapters
from core.train.adapters import Adapters
from core.train.loop import run_training
from tests.core.train.service import Killed, ScriptedControl, Service
from tests.core.train.test_resume import fork
from tests.core.train.tiny import tiny_llama

QUICK: dict[str, Any] = {
    "looks": None,
    "damage_stop": None,
    "max_steps": 4,
    "learning_rate": 0.05,
    "lora": {"r": 4, "alpha": 8.0},
}
IDS = torch.arange(14).reshape(1, 14)
CPU = torch.device("cpu")


def attached(lora: Lora | None = None, dtype=torch.float32, seed=3):
    model = tiny_llama(dtype=dtype)
    return model, Adapters(model, lora or Lora(r=4, alpha=8.0), CPU, seed=seed, base="tiny")


def moved(found: Adapters) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    for _, parameter in found.parameters():
        parameter.data = 0.2 * torch.randn(parameter.shape, generator=generator).to(parameter)
    return {name: parameter.detach() for name, parameter in found.parameters()}


def logits(model):
    with torch.no_grad():
        return model(input_ids=IDS).logits


def test_new_adapters_change_nothing_and_are_all_that_is_trained():
    model, found = attached()
    assert torch.equal(logits(model), logits(tiny_llama(dtype=torch.float32)))
    names = [name for name, _ in found.parameters()]
    assert len(names) == 2 * 2 * 7  # two layers of seven maps, A and B
    assert all(".lora_" in name for name in names)


def test_the_same_seed_starts_alike_and_another_does_not():
    first, same, other = (dict(attached(seed=seed)[1].parameters()) for seed in (3, 3, 4))
    name = next(name for name in first if "lora_A" in name)
    assert torch.equal(first[name], same[name])
    assert not torch.equal(first[name], other[name])
    assert float(first[name].detach().abs().max()) <= 24**-0.5


def test_merged_weights_give_the_adapted_models_logits():
    model, found = attached()
    values = moved(found)
    plain = tiny_llama(dtype=torch.float32)
    plain.load_state_dict(dict(found.merged(values, torch.float32)), strict=False)
    assert not torch.allclose(logits(model), logits(tiny_llama(dtype=torch.float32)), atol=0.1)
    torch.testing.assert_close(logits(plain), logits(model), rtol=1e-5, atol=1e-5)


def test_merged_names_are_the_start_models_and_each_once():
    _, found = attached()
    merged = found.merged(moved(found), torch.float32)
    expected = set(dict(tiny_llama().named_parameters()))
    assert set(merged) == expected
    assert len(list(merged)) == len(merged) == len(expected)


def test_the_product_is_scaled_by_alpha_over_r():
    _, found = attached(Lora(r=2, alpha=6.0, targets=("q_proj",)))
    values = moved(found)
    name, product = next(iter(found.products(values)))
    first, second = values[f"{name[:-7]}.lora_A.default.weight"], values[f"{name[:-7]}.lora_B.default.weight"]
    torch.testing.assert_close(product, 3.0 * second @ first)
    assert [n for n, _ in found.products(values)] == [f"model.layers.{i}.self_attn.q_proj.weight" for i in (0, 1)]


def test_without_adapters_the_model_is_the_start_model_and_comes_back():
    model, found = attached()
    moved(found)
    adapted = logits(model)
    with found.disabled():
        assert torch.equal(logits(model), logits(tiny_llama(dtype=torch.float32)))
    assert torch.equal(logits(model), adapted)
    assert all(parameter.requires_grad for _, parameter in found.parameters())


def test_peft_reads_the_files_as_an_adapter_of_its_own(tmp_path):
    from peft import PeftModel

    model, found = attached()
    found.write(tmp_path, moved(found))
    (tmp_path / adapters.WEIGHTS).rename(tmp_path / "adapter_model.safetensors")
    (tmp_path / adapters.CONFIG).rename(tmp_path / "adapter_config.json")
    theirs = PeftModel.from_pretrained(tiny_llama(dtype=torch.float32), str(tmp_path))
    torch.testing.assert_close(logits(theirs), logits(model), rtol=1e-6, atol=1e-6)


def test_what_changed_is_counted_in_the_models_own_precision():
    _, found = attached(dtype=torch.bfloat16)
    values = {name: parameter.detach() for name, parameter in found.parameters()}
    assert found.changed(values) == 0
    values = moved(found)
    base = dict(tiny_llama(dtype=torch.bfloat16).named_parameters())
    by_hand = sum(
        int(((base[name].float() + product.float()).bfloat16() != base[name]).sum())
        for name, product in found.products(values)
    )
    assert found.changed(values) == by_hand > 0
    assert found.elements() == sum(value.numel() for value in base.values())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, pool):
    service = Service(tmp_path_factory.mktemp("adapters"))
    run_id = service.post(**QUICK)
    context = service.attempt(run_id)
    service.finish(context, run_training(context, pool))
    return service, run_id


def rows(service: Service, run_id: str) -> dict[int, Any]:
    with service.db.read() as session:
        return {row.step: row for row in checkpoints.list_(session, run_id)}


def test_a_checkpoint_is_the_effective_model_with_the_adapters_beside_it(undisturbed):
    service, run_id = undisturbed
    found = rows(service, run_id)
    start, end = (service.settings.home / found[step].path for step in (0, 4))
    assert found[0].sha256 != found[4].sha256
    before, after = load_file(start / "model.safetensors"), load_file(end / "model.safetensors")
    held = load_file(end / adapters.WEIGHTS)
    name = "model.layers.0.self_attn.q_proj"
    first, second = (held[f"base_model.model.{name}.lora_{part}.weight"] for part in "AB")
    assert second.abs().max() > 0
    torch.testing.assert_close(after[f"{name}.weight"], before[f"{name}.weight"] + 2.0 * second @ first)
    assert torch.equal(after["model.embed_tokens.weight"], before["model.embed_tokens.weight"])
    assert json.loads((end / adapters.CONFIG).read_text())["base_model_name_or_path"] == "tiny"
    # Any library reads the folder as an ordinary model.
    assert set(dict(load_model(end, torch.float32, "cpu").named_parameters())) <= set(after) | {"lm_head.weight"}


def test_the_curves_of_a_run_with_adapters(undisturbed):
    service, run_id = undisturbed
    with service.db.read() as session:
        curves = metrics.curves(session, run_id, keys=["kl", "weights/changed_share"])
    kl, share = ([point.value for point in curves[key].points] for key in ("kl", "weights/changed_share"))
    assert abs(kl[0]) < 1e-6  # the policy is still the start model
    assert kl[-1] > 0
    assert 0 < share[0] <= share[-1] < 1


def test_killed_and_resumed_it_ends_with_the_same_bits(service, pool, undisturbed):
    def die(asked: int) -> None:
        if asked == 7:
            raise Killed

    run_id = service.post(**QUICK)
    first = service.attempt(run_id, ScriptedControl(die))
    with pytest.raises(Killed):
        run_training(first, pool)
    service.lost(first)
    assert run_training(service.attempt(run_id), pool).state == "succeeded"
    assert rows(service, run_id)[4].sha256 == rows(*undisturbed)[4].sha256


def test_a_fork_continues_with_adapters_on_the_model_they_belong_to(undisturbed, pool):
    service, run_id = undisturbed
    child = fork(service, run_id, 2, **QUICK)
    context = service.attempt(child)
    service.finish(context, run_training(context, pool))
    assert rows(service, child)[4].sha256 == rows(service, run_id)[4].sha256


def test_dropout_draws_the_same_after_a_crash(service, pool):
    dropped = QUICK | {"lora": {"r": 4, "dropout": 0.3}, "max_steps": 2, "save": {"every": 1}}
    straight = service.post(**dropped)
    context = service.attempt(straight)
    service.finish(context, run_training(context, pool))

    def die(asked: int) -> None:
        if asked == 4:
            raise Killed

    killed = service.post(**dropped)
    first = service.attempt(killed, ScriptedControl(die))
    with pytest.raises(Killed):
        run_training(first, pool)
    service.lost(first)
    run_training(service.attempt(killed), pool)
    assert rows(service, killed)[2].sha256 == rows(service, straight)[2].sha256


def test_other_adapters_are_refused_by_name(tmp_path):
    _, found = attached(Lora(r=4, targets=("q_proj",)))
    found.write(tmp_path, moved(found))
    with pytest.raises(ValueError, match=r"adapters on other maps .*lora must stay as it was"):
        attached()[1].read(tmp_path)
    with pytest.raises(ValueError, match="has no adapters"):
        found.read(Path(tmp_path / "elsewhere"))


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setattr(adapters, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match="needs the package peft"):
        attached()
    with pytest.raises(ModelError, match=r"nf4 needs the package bitsandbytes.*set quantize to none"):
        attached(Lora(r=4, quantize="nf4"))


def test_four_bit_weights_decode_to_what_bitsandbytes_says_and_train():
    from bitsandbytes import functional as bnb

    model, found = attached(Lora(r=4, alpha=8.0, quantize="nf4"))
    plain = tiny_llama(dtype=torch.float32)
    name = "model.layers.1.mlp.up_proj.weight"
    expected = bnb.dequantize_4bit(*bnb.quantize_4bit(plain.get_parameter(name).data, blocksize=64, quant_type="nf4"))
    torch.testing.assert_close(found.base(name), expected, rtol=0, atol=0)
    gap = float((expected - plain.get_parameter(name).detach()).norm() / expected.norm())
    assert 0.02 < gap < 0.15  # four bits of normal weights
    values = moved(found)
    merged = tiny_llama(dtype=torch.float32)
    merged.load_state_dict(dict(found.merged(values, torch.float32)), strict=False)
    torch.testing.assert_close(logits(merged), logits(model), rtol=1e-4, atol=1e-4)
    assert torch.equal(found.unadapted()["model.embed_tokens.weight"], plain.get_parameter("model.embed_tokens.weight"))
    model(input_ids=IDS).logits.square().mean().backward()
    assert all(parameter.grad is not None for _, parameter in found.parameters())
    assert all(value.grad is None for key, value in model.named_parameters() if ".lora_" not in key)


def test_a_run_over_four_bit_weights_starts_where_they_are(service, pool):
    run_id = service.post(**QUICK | {"lora": {"r": 4, "quantize": "nf4"}, "max_steps": 1})
    context = service.attempt(run_id)
    service.finish(context, run_training(context, pool))
    found = rows(service, run_id)
    # The policy's start is the decoded model, and a step from there moves it.
    start = load_file(service.settings.home / found[0].path / "model.safetensors")
    original = load_file(service.settings.models_dir / "tiny" / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    assert not torch.equal(start[name], original[name].float())
    torch.testing.assert_close(start[name], original[name].float(), rtol=0, atol=float(original[name].abs().max()) / 4)
    assert found[0].sha256 != found[1].sha256


def test_lean_layers_with_adapters_are_the_librarys():
    from core.rl.lean import make_lean
    from tests.core.rl.test_lean import build, hidden_and_gradients

    def with_adapters(lean):
        model = build("qwen2")
        found = Adapters(model, Lora(r=4, alpha=8.0), CPU, seed=3, base="tiny")
        moved(found)
        if lean:
            assert make_lean(model.model) == 2
        return hidden_and_gradients(model)

    (expected, gradients), (hidden, lean_gradients) = with_adapters(lean=False), with_adapters(lean=True)
    torch.testing.assert_close(hidden, expected, rtol=1e-5, atol=1e-5)
    assert gradients.keys() == lean_gradients.keys()
    for name, value in gradients.items():
        torch.testing.assert_close(lean_gradients[name], value, rtol=1e-4, atol=1e-4, msg=name)
