"""Low-rank adapters (Hu et al. 2021) on the linear maps of a model's layers, by peft; QLoRA's four bits, by bitsandbytes.

Attached in place, so that the model stays the object that engines and the trainer know. What counts outside is the effective
weight W + s B A of each map: checkpoints hold it in float32 as an ordinary model folder, beside the adapters themselves in
peft's own format under names that no library mistakes for a model of its own (``lora.safetensors``, ``lora.json``; renamed to
``adapter_model.safetensors`` and ``adapter_config.json`` they are a peft adapter). Optimizers and losses are elsewhere.
"""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from core.engines.models import ModelError, named_weights
from core.recipes.train import Lora
from core.streams import stream_seed

WEIGHTS = "lora.safetensors"
CONFIG = "lora.json"

_NAME = "default"
_PEFT_PREFIX = "base_model.model."


class Adapters:
    """The adapters of one model and what they make of its weights."""

    def __init__(self, model: PreTrainedModel, lora: Lora, device: torch.device, *, seed: int, base: str) -> None:
        """Freeze the model, quantise it onto ``device`` where asked, and attach adapters that change nothing yet.

        A starts uniform in +-1/sqrt(in) (peft's default) from the stream ("lora", map) of ``seed``, B at 0. ``base`` is the
        reference of the model that the adapters belong to. Raises :class:`ModelError` when a library is missing or no map
        has a target's name.
        """
        self._model, self._base = model, base
        dtype: torch.dtype = model.get_input_embeddings().weight.dtype  # type: ignore[assignment]
        model.requires_grad_(False)
        if lora.quantize == "nf4":
            _quantize(model, dtype, device)
        model.to(device)  # type: ignore[arg-type]
        self._config = _inject(model, lora, dtype)
        self._layers = {name: module for name, module in model.named_modules() if _is_adapted(module)}
        for name, layer in self._layers.items():
            _start(layer, stream_seed(seed, "lora", name))
        self.scale = lora.alpha / lora.r

    def parameters(self) -> list[tuple[str, nn.Parameter]]:
        """The trained parameters by name, A and B of every map."""
        return [(name, parameter) for name, parameter in self._model.named_parameters() if parameter.requires_grad]

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """The start model, for as long as the context lasts."""
        for layer in self._layers.values():
            layer.enable_adapters(False)
        try:
            yield
        finally:
            for layer in self._layers.values():
                layer.enable_adapters(True)

    def product(self, name: str, values: Mapping[str, Tensor]) -> Tensor:
        """The change s B A [out, in] of the adapted weight ``name`` (its name in the start model).

        ``values`` holds A and B by parameter name: the parameters themselves, or their masters.
        """
        map_name = name.removesuffix(".weight")
        first, second = (values[f"{map_name}.lora_{part}.{_NAME}.weight"].detach() for part in "AB")
        return self.scale * (second @ first)

    def maps(self) -> Iterator[tuple[str, tuple[int, int]]]:
        """The adapted weights by their names in the start model, with their shapes [out, in]."""
        for name, layer in self._layers.items():
            yield f"{name}.weight", (layer.out_features, layer.in_features)

    def products(self, values: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """:meth:`product` of every adapted weight, one at a time."""
        for name, _ in self.maps():
            yield name, self.product(name, values)

    def merged(self, values: Mapping[str, Tensor], dtype: torch.dtype) -> Mapping[str, Tensor]:
        """Every weight of the model under its name in the start model, the adapted ones as W + s B A, in ``dtype``.

        The sum is taken in float32 where ``values`` are. Each tensor is made when it is asked for and not kept.
        """
        return _Merged(self, values, dtype)

    def unadapted(self) -> dict[str, Tensor]:
        """The weights that have no adapter, by their names in the start model, a tied one once."""
        inside = {f"{name}.": layer for name, layer in self._layers.items()}
        weights = {
            name: tensor.detach()
            for name, tensor in named_weights(self._model).items()
            if not name.startswith(tuple(inside))
        }
        biases = {f"{prefix}bias": layer.base_layer.bias for prefix, layer in inside.items()}
        return weights | {name: bias.detach() for name, bias in biases.items() if bias is not None}

    def base(self, name: str) -> Tensor:
        """The start model's value of the adapted weight ``name``; one that is stored in nf4 is decoded."""
        return base_weight(self._layers[name.removesuffix(".weight")])

    @torch.no_grad()
    def changed(self, values: Mapping[str, Tensor]) -> int:
        """Elements of the adapted weights that the adapters move to another value of the model's dtype."""
        count = 0
        for name, product in self.products(values):
            base = self.base(name)
            count += int(((base.float() + product.float()).to(base.dtype) != base).sum())
        return count

    def elements(self) -> int:
        """Elements of the whole model without adapters; a tied head counts once."""
        adapted = sum(rows * columns for _, (rows, columns) in self.maps())
        return adapted + sum(value.numel() for value in self.unadapted().values())

    def write(self, folder: Path, masters: Mapping[str, Tensor]) -> None:
        """Write the adapters and what they belong to into a checkpoint folder."""
        tensors = {_peft_name(name): value.detach().float().cpu().contiguous() for name, value in masters.items()}
        save_file(tensors, str(folder / WEIGHTS), metadata={"format": "pt"})
        config = {name: _plain(value) for name, value in self._config.to_dict().items()}
        config["base_model_name_or_path"] = self._base
        (folder / CONFIG).write_text(json.dumps(config, indent=1, sort_keys=True), encoding="utf-8")

    def read(self, folder: Path) -> dict[str, Tensor]:
        """The adapters of a checkpoint folder by parameter name; raises ValueError when it holds others or none."""
        path = folder / WEIGHTS
        tensors = load_file(path) if path.is_file() else {}
        names = {_peft_name(name): name for name, _ in self.parameters()}
        if names.keys() != tensors.keys():
            unlike = sorted(names.keys() ^ tensors.keys())
            what = "no adapters" if not tensors else f"adapters on other maps (first: {unlike[0]})"
            raise ValueError(f"the checkpoint has {what}; lora must stay as it was")
        return {names[name]: tensor for name, tensor in tensors.items()}


class _Merged(Mapping[str, Tensor]):
    def __init__(self, adapters: Adapters, values: Mapping[str, Tensor], dtype: torch.dtype) -> None:
        self._adapters, self._values, self._dtype = adapters, values, dtype
        self._others = adapters.unadapted()
        self._adapted = [name for name, _ in adapters.maps()]

    def __iter__(self) -> Iterator[str]:
        yield from self._others
        yield from self._adapted

    def __len__(self) -> int:
        return len(self._others) + len(self._adapted)

    @torch.no_grad()
    def __getitem__(self, name: str) -> Tensor:
        if name in self._others:
            return self._others[name].to(self._dtype)
        product = self._adapters.product(name, self._values).float()
        return (self._adapters.base(name).to(product.device).float() + product).to(self._dtype)


def base_reference(folder: Path) -> str | None:
    """The model that the adapters of a checkpoint folder belong to, None when it has none."""
    path = folder / CONFIG
    return str(json.loads(path.read_text(encoding="utf-8"))["base_model_name_or_path"]) if path.is_file() else None


def base_weight(layer: Any) -> Tensor:
    """The start model's weight [out, in] of an adapted map; one that is stored in nf4 is decoded."""
    weight: Tensor = layer.base_layer.weight
    state = getattr(weight, "quant_state", None)
    if state is None:
        return weight.detach()
    import bitsandbytes.functional as bnb

    decoded: Tensor = bnb.dequantize_4bit(weight.data, state)
    return decoded


def _inject(model: PreTrainedModel, lora: Lora, dtype: torch.dtype) -> Any:
    if find_spec("peft") is None:
        raise ModelError("lora needs the package peft, which this worker does not have; install it or remove lora")
    from peft import LoraConfig, inject_adapter_in_model

    targets: Any = "all-linear" if lora.targets == ("all-linear",) else list(lora.targets)
    alpha: Any = lora.alpha  # peft divides it by r, whole or not
    config = LoraConfig(
        r=lora.r, lora_alpha=alpha, lora_dropout=lora.dropout, target_modules=targets, task_type="CAUSAL_LM"
    )
    try:
        inject_adapter_in_model(config, model, _NAME)
    except ValueError as problem:
        raise ModelError(f"lora.targets {list(lora.targets)} do not fit the model: {problem}") from problem
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            parameter.data = parameter.data.to(dtype)
    return config


def _is_adapted(module: nn.Module) -> bool:
    return hasattr(module, "base_layer") and hasattr(module, "lora_A")


@torch.no_grad()
def _start(layer: Any, seed: int) -> None:
    first, second = layer.lora_A[_NAME].weight, layer.lora_B[_NAME].weight
    bound = 1 / math.sqrt(first.shape[1])
    drawn = torch.rand(first.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)
    first.copy_((2 * drawn - 1) * bound)
    second.zero_()


def _quantize(model: PreTrainedModel, dtype: torch.dtype, device: torch.device) -> None:
    """Replace the linear maps of the layers by nf4 ones (blocks of 64, a float32 scale each)."""
    if find_spec("bitsandbytes") is None:
        raise ModelError(
            "lora.quantize nf4 needs the package bitsandbytes, which this worker does not have; install the extra gpu "
            "(pip install 'driftline[gpu]') or set quantize to none"
        )
    from bitsandbytes.nn.modules import Linear4bit, Params4bit

    layers = model.get_decoder().layers  # type: ignore[no-untyped-call]
    for parent in list(layers.modules()):
        for name, linear in list(parent.named_children()):
            if type(linear) is nn.Linear:
                small = Linear4bit(  # type: ignore[no-untyped-call]
                    linear.in_features,
                    linear.out_features,
                    bias=linear.bias is not None,
                    compute_dtype=dtype,
                    compress_statistics=False,
                    quant_type="nf4",
                )
                small.weight = Params4bit(
                    linear.weight.data, requires_grad=False, compress_statistics=False, quant_type="nf4"
                )
                if linear.bias is not None:
                    small.bias = linear.bias
                setattr(parent, name, small.to(device).requires_grad_(False))
    # What peft asks before it puts an adapter on such a map.
    model.is_loaded_in_4bit = True  # type: ignore[assignment]


def _peft_name(name: str) -> str:
    return _PEFT_PREFIX + name.replace(f".{_NAME}.", ".")


def _plain(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(value)
    return value if isinstance(value, str | int | float | bool | list | dict | None) else str(value)
