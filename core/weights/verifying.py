"""Asks an export again what its checkpoint answered greedily, and says how far the two agree.

The export is loaded as its users would: transformers for a folder, transformers' GGUF reader for a file, peft on the base model
for an adapter. Rounding to a smaller type can change a greedy token, so agreement is reported and not required to be whole;
an export that agrees with nothing is broken, and the caller refuses it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, PreTrainedModel, PreTrainedTokenizerBase

from core.engines.base import Completion, Request, SamplingParams
from core.engines.models import load_model, load_tokenizer, stop_token_ids
from core.engines.transformers_engine import TransformersEngine
from core.store.greedy import GreedyRecord
from core.weights.gguf_file import FILE

FRESH_TOKENS = 64


@dataclass(frozen=True)
class Agreement:
    """``same`` of ``records`` answers are token for token the same; ``prefix`` is the mean share of tokens up to the first
    difference. ``source`` says whether the answers were stored or had to be given anew."""

    source: str
    records: int
    same: int
    prefix: float | None

    def as_dict(self) -> dict[str, Any]:
        """As results show it."""
        return {
            "source": self.source,
            "records": self.records,
            "same": self.same,
            "share_same": self.same / self.records if self.records else None,
            "prefix": self.prefix,
        }


def agreement(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, records: Sequence[GreedyRecord], source: str
) -> Agreement:
    """Decode the records' prompts greedily, under the records' own lengths and stops, and compare token ids."""
    shares: list[float] = []
    same = 0
    for answer, record in zip(answers(model, tokenizer, records), records, strict=True):
        same += answer.token_ids == record.token_ids
        longest = max(len(answer.token_ids), len(record.token_ids), 1)
        shares.append(_common(answer.token_ids, record.token_ids) / longest)
    return Agreement(source, len(records), same, sum(shares) / len(shares) if shares else None)


def answers(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, records: Sequence[GreedyRecord]
) -> list[Completion]:
    """The model's greedy answers to the records' prompts."""
    if not records:
        return []
    engine = TransformersEngine(model, tokenizer)
    requests = [Request(record.prompt_ids) for record in records]
    try:
        return engine.generate(requests, _params(records[0]))
    finally:
        engine.close()


def fresh_records(
    folder: Path, prompts: Sequence[tuple[tuple[int, ...], str]], device: torch.device
) -> list[GreedyRecord]:
    """What the checkpoint itself answers to prompts, where no greedy answers of it are stored."""
    model, tokenizer = load_model(folder, torch.float32, device), load_tokenizer(folder)
    params = {"max_tokens": FRESH_TOKENS, "stop_token_ids": list(stop_token_ids(model, tokenizer)), "stop": []}
    asked = [GreedyRecord(str(place), ids, text, (), params) for place, (ids, text) in enumerate(prompts)]
    given = answers(model, tokenizer, asked)
    return [
        GreedyRecord(record.item_id, record.prompt_ids, record.prompt_text, answer.token_ids, params)
        for record, answer in zip(asked, given, strict=True)
    ]


def load_hf(folder: Path, dtype: torch.dtype, device: torch.device) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """An exported folder, as the engine of evaluations loads it."""
    return load_model(folder, dtype, device), load_tokenizer(folder)


def load_gguf(
    folder: Path, dtype: torch.dtype, device: torch.device
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """An exported file through transformers' GGUF reader, tokenizer included."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        str(folder),
        gguf_file=FILE,
        dtype=dtype,
        attn_implementation="sdpa",
        quantization_config=GgufConfig(dequantize=True),
        local_files_only=True,
    )
    tokenizer = AutoTokenizer.from_pretrained(str(folder), gguf_file=FILE, local_files_only=True)
    model.to(device)  # type: ignore[arg-type]
    return model.eval(), tokenizer  # type: ignore[no-untyped-call]


def load_adapter(
    folder: Path, base: Path, dtype: torch.dtype, device: torch.device
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """An exported adapter on its base model, merged into it for decoding."""
    from peft import PeftModel

    merged: PreTrainedModel = PeftModel.from_pretrained(load_model(base, dtype, device), str(folder)).merge_and_unload()
    return merged.eval(), load_tokenizer(base)  # type: ignore[no-untyped-call]


def tokenizes_alike(
    ours: PreTrainedTokenizerBase, theirs: PreTrainedTokenizerBase, records: Sequence[GreedyRecord]
) -> float | None:
    """Share of the records' prompts that both tokenizers cut into the same ids."""
    texts = [record.prompt_text for record in records]
    if not texts:
        return None
    same = [
        ours(text, add_special_tokens=False)["input_ids"] == theirs(text, add_special_tokens=False)["input_ids"]
        for text in texts
    ]
    return same.count(True) / len(same)


def _params(record: GreedyRecord) -> SamplingParams:
    return SamplingParams(
        temperature=0.0,
        max_tokens=int(record.params["max_tokens"]),
        stop_token_ids=tuple(record.params.get("stop_token_ids", ())),
        stop=tuple(record.params.get("stop", ())),
    )


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    for place, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return place
    return min(len(left), len(right))
