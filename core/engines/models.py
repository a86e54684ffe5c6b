"""Hugging Face model folders: finding, loading, taking apart, saving and hashing them.

One place decides what a model reference means, which attention kernel is used, and what the canonical set of weights is.
It deliberately knows nothing of runs and checkpoints as rows: ``run:`` references are resolved by the caller, through
the store, to a folder. It never downloads unless the operator sets ``DRIFTLINE_HUB=1``.
"""

import copy
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from core.engines import smollm2
from core.engines.base import EngineError
from core.settings import Settings

SMOLLM2 = "smollm2-135m"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

# Config fields of models whose logits are more than hidden state times head weight, with the value that means "off".
_LOGIT_CHANGES: dict[str, float | None] = {
    "final_logit_softcapping": None,
    "logit_scale": 1.0,
    "logits_scaling": 1.0,
    "lm_head_multiplier": 1.0,
}


class ModelError(EngineError, ValueError):
    """A model reference or model folder cannot be used; the message says what is allowed."""


def resolve_model(ref: str, settings: Settings, env: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the model that ``ref`` names.

    ``smollm2-135m`` is the bundled model, dequantised on first use. ``ORG/NAME`` and other relative names are looked for
    under the operator's model folder, then (``ORG/NAME`` only) in the local Hugging Face cache, and downloaded only when
    ``DRIFTLINE_HUB=1``. Raises :class:`ModelError` for ``run:`` references, for names that leave the model folder, and
    for what is not there.
    """
    if ref.startswith("run:"):
        raise ModelError(
            f"model {ref!r} names a run's checkpoint; it must be resolved to a folder through the store first"
        )
    if ref == SMOLLM2:
        return smollm2.prepare(settings.smollm2_dir)
    local = _under_models_dir(ref, settings.models_dir)
    if local is not None:
        return _complete(local, ref)
    if ref.count("/") == 1 and all(ref.split("/")) and not ref.startswith((".", "/")):
        return _complete(_from_hub(ref, allow_download=env.get("DRIFTLINE_HUB") == "1"), ref)
    where = f"under {settings.models_dir}" if settings.models_dir else "(DRIFTLINE_MODELS names no model folder)"
    raise ModelError(
        f"model {ref!r} is not known: use {SMOLLM2!r}, ORG/NAME of a model in the local Hugging Face cache, "
        f"a folder {where}, or run:ID/best|last|step-N"
    )


def _under_models_dir(ref: str, models_dir: Path | None) -> Path | None:
    if models_dir is None:
        return None
    root = models_dir.resolve()
    folder = (root / ref).resolve()
    if folder == root or not folder.is_relative_to(root):
        if Path(ref).is_absolute() or ".." in Path(ref).parts:
            raise ModelError(f"model {ref!r} lies outside the operator's model folder; name a folder inside it")
        return None
    return folder if folder.is_dir() else None


def _from_hub(ref: str, *, allow_download: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    patterns = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
    try:
        return Path(snapshot_download(ref, local_files_only=not allow_download, allow_patterns=patterns))
    except HFValidationError as error:
        raise ModelError(f"model {ref!r} is not a valid ORG/NAME: {error}") from None
    except LocalEntryNotFoundError:
        raise ModelError(
            f"model {ref!r} is not in the local Hugging Face cache; download it there first, put its folder under "
            "DRIFTLINE_MODELS, or set DRIFTLINE_HUB=1 to let the worker download it"
        ) from None
    except HfHubHTTPError as error:
        raise ModelError(f"model {ref!r} could not be downloaded: {error}") from error


def _complete(folder: Path, ref: str) -> Path:
    missing = missing_files(folder)
    if missing:
        raise ModelError(f"model {ref!r} at {folder} is incomplete: it has no {', '.join(missing)}")
    return folder


def missing_files(folder: Path) -> list[str]:
    """Name what a usable model folder lacks: its config, its safetensors weights (every shard), its tokenizer."""
    missing = [] if (folder / "config.json").is_file() else ["config.json"]
    if (folder / INDEX_FILE).is_file():
        shards = set(json.loads((folder / INDEX_FILE).read_text())["weight_map"].values())
        missing += sorted(name for name in shards if not (folder / name).is_file())
    elif not (folder / WEIGHTS_FILE).is_file():
        missing.append(WEIGHTS_FILE)
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        missing.append("tokenizer.json")
    return missing


def load_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model folder, never from the network."""
    return AutoTokenizer.from_pretrained(str(path), local_files_only=True)


def load_model(path: Path, dtype: torch.dtype, device: torch.device | str) -> PreTrainedModel:
    """Load a causal language model in eval mode with weights of ``dtype`` on ``device``.

    Attention is ``sdpa``: on CPU its forward and backward are bit-identical from call to call, and it is faster there
    than ``eager``. Raises :class:`ModelError` when the head is one that :func:`body_and_head` refuses, and for weights that
    cannot be read or do not fill the model: transformers would draw what is missing at random, with a warning at most.
    """
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            str(path),
            dtype=dtype,
            attn_implementation="sdpa",
            local_files_only=True,
            ignore_mismatched_sizes=True,  # they are refused below, by name
            output_loading_info=True,
        )
    except SafetensorError as problem:
        raise ModelError(f"the weights in {path.name} cannot be read: {problem}; restore the folder") from problem
    model: PreTrainedModel
    model, told = loaded
    _check_filled(path, told)
    model.to(device)  # type: ignore[arg-type]
    model.eval()  # type: ignore[no-untyped-call]
    body_and_head(model)
    return model


def _check_filled(path: Path, told: Mapping[str, Iterable[Any]]) -> None:
    """Refuse weights that left a part of the model as it was drawn; ``told`` is transformers' account of the loading."""
    for key, what in (("missing_keys", "are missing"), ("mismatched_keys", "have another shape")):
        # Of a mismatch the name is told with both shapes.
        names = sorted(name if isinstance(name, str) else name[0] for name in told[key])
        if names:
            shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
            raise ModelError(
                f"the weights in {path.name} do not fill the model that its config.json describes: {what}: {shown}; "
                "restore the folder"
            )


def body_and_head(model: PreTrainedModel) -> tuple[Callable[..., Any], Tensor, bool]:
    """Split a model into its body and its head.

    Returns the decoder module (called with keyword arguments, ``.last_hidden_state`` is [B, T, H] after the final norm),
    the head's weight [V, H] (the live parameter) and whether it is tied to the input embedding. The logits are exactly
    hidden times weight transposed; heads with a bias, a scale or soft-capping are refused with :class:`ModelError`.
    """
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    body = model.get_decoder()  # type: ignore[no-untyped-call]
    name = type(model).__name__
    if not isinstance(head, nn.Linear) or body is model or not isinstance(body, nn.Module):
        raise ModelError(f"{name} is not a body followed by a linear head; only decoder language models are supported")
    if head.bias is not None:
        raise ModelError(f"{name} has a head with a bias, which the chunked backward pass does not support")
    config = model.config.get_text_config()
    for attribute, off in _LOGIT_CHANGES.items():
        value = getattr(config, attribute, off)
        if value not in (None, off):
            raise ModelError(f"{name} changes its logits after the head ({attribute}={value}), which is not supported")
    embedding = model.get_input_embeddings()
    return body, head.weight, head.weight is getattr(embedding, "weight", None)


def named_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the model's weights by their Hugging Face names, parameters and persistent buffers, a tied one once.

    A tied weight keeps the name that comes first in module order, the embedding's, so the head is left out.
    """
    return _untied(model.state_dict().items())


def _untied(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    kept: dict[str, Tensor] = {}
    seen: set[tuple[Any, ...]] = set()
    for name, tensor in tensors:
        place = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        if tensor.numel() and place in seen:
            continue
        seen.add(place)
        kept[name] = tensor
    return kept


def weights_sha256(tensors: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]]) -> str:
    """Return the hex sha256 of a set of named weights, whatever file layout holds them.

    For each name in sorted order it hashes a line of JSON ``[name, dtype, shape]`` and the raw little-endian bytes.
    Names that share one tensor count once, under the first name given. A live model (:func:`named_weights`) and the file
    that :func:`save_model` wrote from it in the same dtype have the same hash.
    """
    kept = _untied(tensors.items() if isinstance(tensors, Mapping) else tensors)
    digest = hashlib.sha256(b"driftline/weights/1\n")
    for name in sorted(kept):
        tensor = kept[name].detach()
        header = json.dumps([name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)])
        digest.update(header.encode() + b"\n")
        flat = tensor.contiguous().cpu().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def save_model(
    model: PreTrainedModel,
    folder: Path,
    dtype: torch.dtype,
    *,
    masters: Mapping[str, Tensor] | None = None,
    weights: Mapping[str, Tensor] | None = None,
) -> None:
    """Write ``config.json``, ``generation_config.json`` and one ``model.safetensors`` with weights of ``dtype``.

    Names are those of the model, a tied head is left out, as in the published folders of tied models. ``masters`` (by name)
    are written instead of the weights that they are the exact version of; ``weights`` instead of all weights, where the model
    holds them in another form (adapters). The folder must exist; writing it aside and renaming it is the caller's.
    """
    exact = dict(weights) if weights is not None else named_weights(model) | dict(masters or {})
    stored = {name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in exact.items()}
    save_file(stored, str(folder / WEIGHTS_FILE), metadata={"format": "pt"})
    config = copy.deepcopy(model.config)
    config.dtype = dtype
    config.architectures = [type(model).__name__]
    config.save_pretrained(str(folder))
    if model.generation_config is not None:
        model.generation_config.save_pretrained(str(folder))


def read_weights(path: Path) -> dict[str, Path]:
    """Map each weight's name to the safetensors file under ``path`` that holds it."""
    index = path / INDEX_FILE
    if index.is_file():
        return {name: path / file for name, file in json.loads(index.read_text())["weight_map"].items()}
    file = path / WEIGHTS_FILE
    if not file.is_file():
        raise ModelError(f"{path} has no {WEIGHTS_FILE}")
    with safe_open(str(file), framework="pt") as handle:
        return dict.fromkeys(handle.keys(), file)


def load_weights_into(model: PreTrainedModel, path: Path) -> None:
    """Copy the weights of a model folder into a live model, in place, so that optimizers and engines keep their tensors.

    The folder must hold exactly the model's weights, a tied head optional; values are cast to the model's dtype. Nothing
    is changed when names or shapes disagree (:class:`ModelError`). Callers refresh fp32 masters and engines themselves.
    """
    target = named_weights(model)
    files = read_weights(path)
    aliases = set(model.state_dict()) - set(target)
    missing, unknown = sorted(set(target) - set(files)), sorted(set(files) - set(target) - aliases)
    if missing or unknown:
        raise ModelError(f"{path} does not fit the model: missing {missing[:3]}, unknown {unknown[:3]}")
    for file in sorted(set(files.values())):
        with safe_open(str(file), framework="pt") as handle:
            for name in (name for name in files if files[name] == file and name in target):
                shape = list(handle.get_slice(name).get_shape())
                if shape != list(target[name].shape):
                    raise ModelError(f"{path}: {name} has shape {shape}, the model needs {list(target[name].shape)}")
    with torch.no_grad():
        for file in sorted(set(files.values())):
            with safe_open(str(file), framework="pt") as handle:
                for name in (name for name in files if files[name] == file and name in target):
                    target[name].copy_(handle.get_tensor(name))


def stop_token_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Return the ids that end a completion: those of the model's generation config and the tokenizer's eos."""
    configured = model.generation_config.eos_token_id if model.generation_config else None
    ids = configured if isinstance(configured, list) else [configured]
    return tuple(sorted({int(token) for token in [*ids, tokenizer.eos_token_id] if token is not None}))


def text_decoder(tokenizer: PreTrainedTokenizerBase) -> Callable[[Sequence[int]], str]:
    """Return the function that turns sampled ids into text for display and grading, special tokens left out."""
    return lambda token_ids: str(tokenizer.decode(list(token_ids), skip_special_tokens=True))
