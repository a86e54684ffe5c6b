"""Two checkpoints and an ``alpha`` as one model folder that vLLM loads by itself once Driftline is installed beside it.

Layout: ``config.json`` (the registered architecture, the networks' configuration), the tokenizer and generation settings of
``b``, ``model.safetensors`` with the one tensor ``alpha``, ``extrapolation.json`` (what was combined), and the folders ``a``
and ``b`` with the checkpoints' own weight files. Those are hard links, or symbolic ones across file systems: no weight is
copied, and giving them their prefix is the loader's work. transformers cannot load such a folder, on purpose.

``python -m core.engines.extrapolated_folder A B ALPHA OUT`` writes one from two model folders.
"""

import argparse
import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, PretrainedConfig

from core.engines.extrapolated_plugin import ARCHITECTURE, MODEL_TYPE
from core.engines.extrapolation import checked_alpha
from core.engines.models import INDEX_FILE, WEIGHTS_FILE, ModelError, load_tokenizer, missing_files, read_weights
from core.engines.references import ModelSource

SUPPORTED = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}
PROVENANCE_FILE = "extrapolation.json"

_SETTINGS = ("config.json", "generation_config.json")
_TOKENIZER = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template*",
)
# What two checkpoints of one architecture may state differently without their logits meaning something else.
_IMMATERIAL = {
    *("_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache", "architectures"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "initializer_range", "attention_dropout", "id2label", "label2id"),
}


def check_pair(a: Path, b: Path) -> PretrainedConfig:
    """Return the configuration of two folders that can be combined.

    Raises :class:`ModelError` that names the first difference: the architecture, a size, or the tokenizer's vocabulary, since
    the logits of one position must mean the same tokens.
    """
    configs: list[PretrainedConfig] = [
        AutoConfig.from_pretrained(str(folder), local_files_only=True) for folder in (a, b)
    ]
    ours, theirs = ({k: v for k, v in one.to_dict().items() if k not in _IMMATERIAL} for one in configs)
    for field in sorted(ours.keys() | theirs.keys()):
        if ours.get(field) != theirs.get(field):
            raise ModelError(
                f"a and b are not checkpoints of one architecture: {field} is {ours.get(field)!r} in a and "
                f"{theirs.get(field)!r} in b; take both from one run, or from runs of one model"
            )
    vocabularies = [load_tokenizer(folder).get_vocab() for folder in (a, b)]
    if vocabularies[0] != vocabularies[1]:
        differing = sorted(token for token, _ in set(vocabularies[0].items()) ^ set(vocabularies[1].items()))
        raise ModelError(f"the tokenizers of a and b differ in {len(differing)} entries, such as {differing[0]!r}")
    return configs[1]


def write_combined(folder: Path, a: ModelSource, b: ModelSource, alpha: float) -> None:
    """Write the combined checkpoint to ``folder``, which appears complete or not at all.

    Raises :class:`ModelError` when the folder exists, when the two do not fit each other (:func:`check_pair`) or are of a
    family that the vLLM class does not support.
    """
    if folder.exists():
        raise ModelError(f"{folder} exists already; name a folder that does not")
    for side in (a, b):
        if missing := missing_files(side.folder):
            raise ModelError(f"model {side.reference!r} is incomplete: it has no {', '.join(missing)}")
    config = check_pair(a.folder, b.folder)
    if config.model_type not in SUPPORTED:
        raise ModelError(
            f"models of type {config.model_type} cannot be combined for vLLM; supported: {', '.join(SUPPORTED)}"
        )
    aside = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    for name, side in (("a", a), ("b", b)):
        _link_network(side.folder, aside / name)
    _write_settings(aside, b.folder, config)
    save_file({"alpha": torch.tensor(checked_alpha(alpha), dtype=torch.float32)}, str(aside / WEIGHTS_FILE))
    provenance = {
        "combination": "lerp(logits of a, logits of b, alpha)",
        "a": {"model": a.reference, "sha256": a.sha256},
        "b": {"model": b.reference, "sha256": b.sha256},
        "alpha": alpha,
    }
    (aside / PROVENANCE_FILE).write_text(json.dumps(provenance, indent=2) + "\n", encoding="utf-8")
    aside.rename(folder)


def _link_network(source: Path, target: Path) -> None:
    """Link the weight files of a model folder and what describes them, and nothing else that lies there."""
    target.mkdir()
    files = {*read_weights(source).values(), *(source / name for name in (*_SETTINGS, INDEX_FILE))}
    for file in sorted(files):
        if file.is_file():
            _link(file, target / file.name)


def _link(source: Path, target: Path) -> None:
    real = source.resolve()
    try:
        os.link(real, target)
    except OSError:  # another file system, or one without hard links
        target.symlink_to(real)


def _write_settings(folder: Path, b: Path, config: PretrainedConfig) -> None:
    inner = {**config.to_dict(), "architectures": [SUPPORTED[config.model_type]]}
    outer: dict[str, Any] = {
        "architectures": [ARCHITECTURE],
        "model_type": MODEL_TYPE,
        "text_config": inner,
        "tie_word_embeddings": bool(inner.get("tie_word_embeddings", False)),
        **{name: inner[name] for name in ("dtype", "bos_token_id", "eos_token_id", "pad_token_id") if name in inner},
    }
    (folder / "config.json").write_text(json.dumps(outer, indent=2, default=str) + "\n", encoding="utf-8")
    copied = [b / "generation_config.json", *(file for pattern in _TOKENIZER for file in b.glob(pattern))]
    for file in copied:
        if file.is_file():
            shutil.copyfile(file, folder / file.name)


def main(arguments: list[str] | None = None) -> None:
    """Write a combined folder from two model folders."""
    parser = argparse.ArgumentParser(prog="core.engines.extrapolated_folder", description=main.__doc__)
    parser.add_argument("a", type=Path, help="folder of the earlier checkpoint")
    parser.add_argument("b", type=Path, help="folder of the later checkpoint")
    parser.add_argument("alpha", type=float, help="0 is a, 1 is b, above 1 goes beyond b")
    parser.add_argument("out", type=Path, help="folder to write; it must not exist")
    asked = parser.parse_args(arguments)
    a, b = (ModelSource(folder.resolve(), folder.name, None) for folder in (asked.a, asked.b))
    write_combined(asked.out, a, b, asked.alpha)


if __name__ == "__main__":
    main()
