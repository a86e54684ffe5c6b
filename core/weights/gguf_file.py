"""Writing a checkpoint as one GGUF file, by the gguf package's own writer, tensor names and vocabulary reader.

Llama, Qwen2 and Qwen3 (dense) with byte-level BPE tokenizers. Matrices are stored in the asked type, vectors always in fp32,
as llama.cpp's own converter does; the rows of Llama's query and key are put into the order its rotary embedding expects
there. Anything that the file could not say is refused by name. No quantisation: llama.cpp's tools make smaller types of it.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from core.engines.lines import FolderWeights
from core.engines.models import ModelError, load_tokenizer
from core.engines.tensor_writer import Progress

FILE = "model.gguf"
ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
}
_TYPES = {
    "float32": (gguf.GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32),
    "float16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    "bfloat16": (gguf.GGMLQuantizationType.BF16, gguf.LlamaFileType.MOSTLY_BF16),
}
_LARGEST_F16 = 65_504.0


def write_gguf(path: Path, source: Path, dtype: str, *, name: str, on_tensor: Progress) -> dict[str, Any]:
    """Write the model folder ``source`` to ``path``; return what was decided on the way.

    Raises :class:`ModelError` naming what a GGUF of this architecture cannot hold.
    """
    config = json.loads((source / "config.json").read_text())
    arch = _architecture(config)
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    wanted, file_type = _TYPES[dtype]
    writer.add_name(name)
    writer.add_file_type(file_type)
    _add_architecture(writer, config)
    pre = _add_tokenizer(writer, source, int(config["vocab_size"]))
    with FolderWeights(source) as weights:
        names = _names(arch, int(config["num_hidden_layers"]), weights)
        types = {hf: wanted if len(weights.shape(hf)) > 1 else gguf.GGMLQuantizationType.F32 for hf in names}
        for hf, own in names.items():
            elements = int(np.prod(weights.shape(hf)))
            block, size = gguf.GGML_QUANT_SIZES[types[hf]]
            shape = weights.shape(hf)
            # The shape is that of the stored bytes' meaning; numpy has no bfloat16, so its type is given apart.
            writer.add_tensor_info(own, shape, np.dtype(np.float32), elements * size // block, raw_dtype=types[hf])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for done, hf in enumerate(names, 1):
            values = _arranged(arch, hf, weights[hf].numpy(), config)
            writer.write_tensor_data(_encoded(values, types[hf], hf))
            on_tensor(done, len(names))
    writer.close()
    return {"architecture": gguf.MODEL_ARCH_NAMES[arch], "pre_tokenizer": pre, "tensors": len(names)}


def _architecture(config: Mapping[str, Any]) -> Any:
    kind = config.get("model_type")
    if kind not in ARCHITECTURES:
        raise ModelError(
            f"a {kind} model cannot be exported as gguf; {', '.join(ARCHITECTURES)} can, and format hf always can"
        )
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if (scaling := rope.get("rope_type", rope.get("type", "default"))) != "default":
        raise ModelError(f"rotary embeddings scaled by {scaling!r} cannot be exported as gguf; use format hf")
    if config.get("use_sliding_window") or config.get("hidden_act", "silu") != "silu":
        raise ModelError("a sliding window or another activation than silu cannot be exported as gguf; use format hf")
    return ARCHITECTURES[kind]


def _add_architecture(writer: Any, config: Mapping[str, Any]) -> None:
    heads = int(config["num_attention_heads"])
    head_dim = int(config.get("head_dim") or config["hidden_size"] // heads)
    rope = config.get("rope_parameters") or {}
    writer.add_context_length(int(config["max_position_embeddings"]))
    writer.add_embedding_length(int(config["hidden_size"]))
    writer.add_block_count(int(config["num_hidden_layers"]))
    writer.add_feed_forward_length(int(config["intermediate_size"]))
    writer.add_head_count(heads)
    writer.add_head_count_kv(int(config.get("num_key_value_heads") or heads))
    writer.add_layer_norm_rms_eps(float(config["rms_norm_eps"]))
    writer.add_rope_freq_base(float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0))
    writer.add_rope_dimension_count(head_dim)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_vocab_size(int(config["vocab_size"]))


def _add_tokenizer(writer: Any, source: Path, vocab_size: int) -> str:
    tokenizer = load_tokenizer(source)
    described = json.loads((source / "tokenizer.json").read_text()) if (source / "tokenizer.json").is_file() else {}
    pre = _pre_tokenizer(described)
    tokens, kinds = zip(*_vocabulary(tokenizer, described, vocab_size), strict=True)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(list(tokens))
    writer.add_token_types(list(kinds))
    special = gguf.SpecialVocab(source, load_merges=True, n_vocab=vocab_size)
    # What the tokenizer itself says counts; the reader above knows older files' places only.
    for kind in ("bos", "eos", "pad"):
        token = getattr(tokenizer, f"{kind}_token_id")
        if token is not None:
            special.special_token_ids[kind] = int(token)
    special.chat_template = tokenizer.chat_template or special.chat_template
    special.add_to_gguf(writer, quiet=True)
    return pre


def _pre_tokenizer(described: Mapping[str, Any]) -> str:
    """The name by which llama.cpp knows how text is cut before merging, told by the tokenizer's own description."""
    if described.get("model", {}).get("type") != "BPE" or described["model"].get("byte_fallback"):
        raise ModelError("only byte-level BPE tokenizers can be exported as gguf; use format hf")
    text = json.dumps(described.get("pre_tokenizer"))
    if "ByteLevel" not in text:
        raise ModelError("only byte-level BPE tokenizers can be exported as gguf; use format hf")
    if r"\\p{N}{1,3}" in text:
        return "llama-bpe"
    if r"\\p{N}|" in text:
        return "qwen2"
    return "smollm" if '"Digits"' in text else "gpt-2"


def _vocabulary(
    tokenizer: PreTrainedTokenizerBase, described: Mapping[str, Any], vocab_size: int
) -> Iterator[tuple[str, int]]:
    """Yield each id's token and its type; ids that the model has and the tokenizer has not are unused."""
    by_id = {index: token for token, index in tokenizer.get_vocab().items()}
    added = {one["id"]: bool(one["special"]) for one in described.get("added_tokens", [])}
    if by_id and max(by_id) >= vocab_size:
        raise ModelError(
            f"the tokenizer has ids up to {max(by_id)}, and the model's vocabulary ends at {vocab_size - 1}"
        )
    for index in range(vocab_size):
        if index not in by_id:
            yield f"[PAD{index}]", gguf.TokenType.UNUSED
        elif index in added:
            yield by_id[index], gguf.TokenType.CONTROL if added[index] else gguf.TokenType.USER_DEFINED
        else:
            yield by_id[index], gguf.TokenType.NORMAL


def _names(arch: Any, layers: int, weights: FolderWeights) -> dict[str, str]:
    """Return each weight's name in the file; raises :class:`ModelError` for one that has none."""
    known = gguf.get_tensor_name_map(arch, layers)
    names = {hf: known.get_name(hf, try_suffixes=(".weight", ".bias")) for hf in weights}
    unknown = sorted(hf for hf, own in names.items() if own is None)
    if unknown:
        raise ModelError(f"a gguf file has no place for {', '.join(unknown[:3])}; use format hf")
    return {hf: str(own) for hf, own in names.items()}


def _arranged(arch: Any, name: str, values: NDArray[Any], config: Mapping[str, Any]) -> NDArray[Any]:
    """Interleave the halves of every head of Llama's query and key; everything else stays as it is."""
    if arch != gguf.MODEL_ARCH.LLAMA or not (".q_proj." in name or ".k_proj." in name):
        return values
    heads = int(config["num_attention_heads"])
    if ".k_proj." in name:
        heads = int(config.get("num_key_value_heads") or heads)
    split = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return split.swapaxes(1, 2).reshape(values.shape)


def _encoded(values: NDArray[Any], wanted: Any, name: str) -> NDArray[Any]:
    values = np.ascontiguousarray(values, dtype=np.float32)
    if wanted == gguf.GGMLQuantizationType.F16 and float(np.abs(values).max(initial=0.0)) > _LARGEST_F16:
        raise ModelError(
            f"{name} holds values above {_LARGEST_F16:g}, which float16 cannot; export as bfloat16 or float32"
        )
    encoded: NDArray[Any] = gguf.quants.quantize(values, wanted)
    return encoded
