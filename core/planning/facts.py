"""The shape of a model: from the catalogue, else from the config.json of its folder. No weight is read."""

import json
from pathlib import Path
from typing import Any

from core.recipes.catalogue import MODELS, ModelFacts
from core.recipes.model_refs import is_run_ref, local_models

_FAMILIES = {"llama": (False, False), "qwen2": (True, False), "qwen3": (False, True)}  # (biases on q k v, norms on q k)


class PlanError(ValueError):
    """A plan cannot be made; the message says which fact is missing and where it would come from."""


def model_facts(name: str, models_dir: Path | None = None) -> ModelFacts:
    """Return the shape of the model ``name``.

    Raises :class:`PlanError` for a run's checkpoint (its shape is its start model's, which the caller knows), for an unknown
    name, and for a config.json that lacks a value or is of a family whose parameters are not known here.
    """
    if name in MODELS:
        return MODELS[name]
    if is_run_ref(name):
        raise PlanError(f"{name} has the shape of the model its run started from; ask for that model's facts")
    if models_dir is None or name not in local_models(models_dir):
        raise PlanError(f"the model {name} is neither in the catalogue nor in the operator's model folder")
    return folder_facts(name, models_dir / name)


def folder_facts(name: str, folder: Path) -> ModelFacts:
    """Return the shape that the config.json of a model folder states; raises :class:`PlanError` naming ``name``."""
    return _from_config(name, json.loads((folder / "config.json").read_text(encoding="utf-8")))


def _from_config(name: str, config: dict[str, Any]) -> ModelFacts:
    family = config.get("model_type")
    if family not in _FAMILIES:
        raise PlanError(f"{name}: model_type is {family!r}; known families: {', '.join(_FAMILIES)}")
    attention_bias, qk_norm = _FAMILIES[family]
    heads = _whole(name, config, "num_attention_heads")
    hidden = _whole(name, config, "hidden_size")
    return ModelFacts(
        family=family,
        layers=_whole(name, config, "num_hidden_layers"),
        hidden=hidden,
        intermediate=_whole(name, config, "intermediate_size"),
        heads=heads,
        kv_heads=_whole(name, config, "num_key_value_heads", heads),
        head_dim=_whole(name, config, "head_dim", hidden // heads),
        vocab=_whole(name, config, "vocab_size"),
        tied=bool(config.get("tie_word_embeddings", False)),
        attention_bias=bool(config.get("attention_bias", attention_bias)),
        qk_norm=qk_norm,
        max_positions=config.get("max_position_embeddings"),
    )


def _whole(name: str, config: dict[str, Any], key: str, default: int | None = None) -> int:
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise PlanError(f"{name}: config.json has {key} {value!r}; it must be a whole number of at least 1")
    return value
