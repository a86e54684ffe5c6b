"""Batched generation with ``transformers`` on a live model, usually the one that is being trained.

The engine holds no weights of its own: it reads the module it was given, in eval mode and without gradients, and puts
the module's training flags back. So an optimizer step is visible at once and a weights update needs no copy; the caller
announces it with :meth:`TransformersEngine.update_weights`, so that every sample names its weights. Key/value caches
live for one batch of one call, so nothing computed with old weights can be used with new ones.

Requests are sorted by prompt, cut into bounded batches and decoded with left padding and explicit position ids. Samples
of one prompt share its prefill: the prompt is run once and its keys and values are copied to its samples, which is
exact, since those rows would hold the same numbers. Finished rows leave the batch. The head is applied to the last
position only, so no [B, T, V] tensor exists.

It deliberately does not render prompts, decode text for its callers (text is decoded only to look for stop strings), or
keep requests between calls.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from core.engines.base import (
    Completion,
    EngineError,
    FinishReason,
    Request,
    SamplingParams,
    check_requests,
    finish_reason,
    next_version,
)
from core.engines.kv_cache import BatchCache, left_pad, uses_plain_attention
from core.engines.models import body_and_head
from core.engines.sampling import SampleStream, choose


@dataclass
class _Row:
    """One request while it is being decoded."""

    index: int
    prompt_ids: tuple[int, ...]
    stream: SampleStream
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: FinishReason | None = None


class TransformersEngine:
    """An :class:`~core.engines.base.Engine` on a live ``PreTrainedModel``.

    ``max_batch_size`` bounds the sequences decoded together, ``max_batch_tokens`` their padded length (prompt and
    completion) in total, and ``prefill_tokens`` the padded prompt tokens run in one forward. ``tokenizer`` is needed for
    stop strings only.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        max_model_len: int | None = None,
        max_batch_size: int = 64,
        max_batch_tokens: int = 131_072,
        prefill_tokens: int = 8_192,
        weights_version: int = 0,
    ) -> None:
        self._body, self._head_VH, _ = body_and_head(model)
        if not uses_plain_attention(model.config):
            raise EngineError(f"the transformers engine cannot decode {type(model).__name__}: it has recurrent layers")
        if min(max_batch_size, max_batch_tokens, prefill_tokens) < 1:
            raise EngineError("max_batch_size, max_batch_tokens and prefill_tokens must be positive")
        self._model: PreTrainedModel | None = model
        self._tokenizer = tokenizer
        self._max_model_len = _model_length(model, max_model_len)
        self._max_batch_size = max_batch_size
        self._max_batch_tokens = max_batch_tokens
        self._prefill_tokens = prefill_tokens
        self._weights_version = weights_version

    @property
    def weights_version(self) -> int:
        """Version of the weights that the next call samples from."""
        return self._weights_version

    def update_weights(self, version: int | None = None) -> None:
        """Count a new version of the shared weights. The module itself is already the new one, and nothing is cached."""
        self._weights_version = next_version(self._weights_version, version)

    def sleep(self) -> None:
        """Nothing to give back: the module is the caller's, and caches live for one batch."""

    def settings(self) -> dict[str, Any]:
        """Everything that can change the output: versions, dtype, device, attention kernel, batch bounds, threads."""
        model = self._live_model()
        return {
            "engine": "transformers",
            "transformers": transformers.__version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "dtype": str(self._head_VH.dtype).removeprefix("torch."),
            "device": str(self._head_VH.device),
            "attention": str(model.config._attn_implementation),
            "max_model_len": self._max_model_len,
            "max_batch_size": self._max_batch_size,
            "max_batch_tokens": self._max_batch_tokens,
            "prefill_tokens": self._prefill_tokens,
            "threads": torch.get_num_threads(),
            "sampler": "exponential race, PCG64",
        }

    def close(self) -> None:
        """Let go of the model. The model itself is the caller's and stays as it is."""
        self._model = None

    def generate(
        self, requests: Sequence[Request], params: SamplingParams, *, logprobs: bool = True
    ) -> list[Completion]:
        """Sample one completion per request; see :class:`~core.engines.base.Engine` for what is promised."""
        self._live_model()
        check_requests(requests, params, max_model_len=self._max_model_len, vocab_size=self._head_VH.shape[0])
        if params.stop and self._tokenizer is None:
            raise EngineError("stop strings need a tokenizer: pass one to the engine, or use stop_token_ids")
        version = self._weights_version
        rows = [_Row(i, tuple(r.prompt_ids), SampleStream(r.seed)) for i, r in enumerate(requests)]
        with _generating(self._networks()):
            for batch in self._batches(rows, requests, params.max_tokens):
                self._decode(batch, params)
        return [_completion(row, version) for row in rows]

    def _live_model(self) -> PreTrainedModel:
        if self._model is None:
            raise EngineError("the engine is closed")
        return self._model

    def _networks(self) -> tuple[PreTrainedModel, ...]:
        """Every network that a forward runs, each to be in eval mode meanwhile."""
        return (self._live_model(),)

    def _batches(self, rows: list[_Row], requests: Sequence[Request], max_tokens: int) -> Iterator[list[_Row]]:
        """Cut the rows, longest prompt first, into batches within both bounds.

        The order is by prompt and seed and not by position in the call, so batches, and with them the rounding of every
        kernel, are the same for any order of the same requests.
        """
        ordered = sorted(rows, key=lambda r: (-len(r.prompt_ids), r.prompt_ids, requests[r.index].seed))
        while ordered:
            length = len(ordered[0].prompt_ids) + max_tokens
            size = max(1, min(self._max_batch_size, self._max_batch_tokens // length))
            yield ordered[:size]
            ordered = ordered[size:]

    def _decode(self, rows: list[_Row], params: SamplingParams) -> None:
        """Decode one batch to its end; fills the rows in place."""
        stops = frozenset(params.stop_token_ids)
        cache, mask_BT, hidden_BH = self._prefill(rows, params.max_tokens)
        positions_B = mask_BT.sum(dim=1)
        while True:
            tokens_B = self._sample(rows, hidden_BH, params, stops)
            finished = [i for i, row in enumerate(rows) if row.finish]
            if finished:
                moves = cache.drop_rows(finished)
                for source, target in moves:
                    rows[target], mask_BT[target] = rows[source], mask_BT[source]
                    tokens_B[target], positions_B[target] = tokens_B[source], positions_B[source]
                rows = rows[: cache.rows]
                if not rows:
                    return
                mask_BT, tokens_B, positions_B = (t[: cache.rows] for t in (mask_BT, tokens_B, positions_B))
                padding = int(mask_BT.argmax(dim=1).min())
                cache.skip_leading(padding)
                mask_BT = mask_BT[:, padding:]
            mask_BT = torch.cat([mask_BT, mask_BT.new_ones((len(rows), 1))], dim=1)
            hidden_BH = self._forward(tokens_B[:, None], mask_BT, positions_B[:, None], cache)
            positions_B = positions_B + 1

    def _prefill(self, rows: list[_Row], max_tokens: int) -> tuple[BatchCache, Tensor, Tensor]:
        """Run every distinct prompt once; return the batch's cache, mask (B, T) and last hidden states (B, H)."""
        prompts = list(dict.fromkeys(row.prompt_ids for row in rows))
        ids_UT, mask_UT, positions_UT = left_pad(prompts, 0, self._head_VH.device)
        width = ids_UT.shape[1]
        cache = BatchCache(rows=len(rows), limit=width + max_tokens)
        of_row = torch.tensor([prompts.index(row.prompt_ids) for row in rows], device=ids_UT.device)
        hidden: list[Tensor] = []
        step = max(1, self._prefill_tokens // width)
        for low in range(0, len(prompts), step):
            part = slice(low, low + step)
            prefilled = DynamicCache()
            hidden_uH = self._forward(ids_UT[part], mask_UT[part], positions_UT[part], prefilled)
            # Rows are sorted by prompt, so the samples of these prompts are one contiguous range of rows.
            mine = ((of_row >= low) & (of_row < low + step)).nonzero()[:, 0]
            at = slice(int(mine[0]), int(mine[-1]) + 1)
            source = of_row[at] - low
            cache.fill_from(prefilled, source, at)
            hidden.append(hidden_uH[source])
        return cache, mask_UT[of_row], torch.cat(hidden)

    def _forward(self, ids_BT: Tensor, mask_BT: Tensor, positions_BT: Tensor, cache: Any) -> Tensor:
        """Return the final-norm hidden state of the last position (B, H), extending ``cache``."""
        output = self._body(
            input_ids=ids_BT,
            attention_mask=mask_BT,
            position_ids=positions_BT,
            past_key_values=cache,
            use_cache=True,
        )
        last_BH: Tensor = output.last_hidden_state[:, -1]
        return last_BH

    def _logits(self, hidden_BH: Tensor) -> Tensor:
        """Raw logits (B, V) of what :meth:`_forward` returned."""
        return nn.functional.linear(hidden_BH, self._head_VH)

    def _sample(self, rows: list[_Row], hidden_BH: Tensor, params: SamplingParams, stops: frozenset[int]) -> Tensor:
        """Sample one token per row, note it in the row and mark the rows that are finished; returns the tokens (B)."""
        tokens_B, logprobs_B = choose(self._logits(hidden_BH), [row.stream for row in rows], params)
        for row, token, logprob in zip(rows, tokens_B.tolist(), logprobs_B.tolist(), strict=True):
            row.tokens.append(token)
            row.logprobs.append(logprob)
            row.finish = finish_reason(token, len(row.tokens), params, stops)
            if row.finish != "stop" and params.stop and self._ends_with_stop_string(row.tokens, params.stop):
                row.finish = "stop"
        return tokens_B

    def _ends_with_stop_string(self, tokens: list[int], stops: tuple[str, ...]) -> bool:
        """Whether the text of the last tokens holds a stop string.

        Every token is checked as it arrives, so only a string that the last token completed can be new. A token of text
        holds at least one byte and a character at most four, which bounds how far back a stop string can begin.
        """
        assert self._tokenizer is not None
        window = 4 * max(len(stop) for stop in stops) + 4
        text = self._tokenizer.decode(tokens[-window:], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return any(stop in text for stop in stops)


def _completion(row: _Row, version: int) -> Completion:
    assert row.finish is not None
    return Completion(tuple(row.tokens), tuple(row.logprobs), row.finish, version)


def _model_length(model: PreTrainedModel, asked: int | None) -> int:
    """The longest sequence to serve: what was asked, or all that the model's positions allow."""
    own = int(model.config.get_text_config().max_position_embeddings)
    if asked is None:
        return own
    if not 2 <= asked <= own:
        raise EngineError(f"max_model_len is {asked}; this model allows 2 to {own} tokens")
    return asked


@contextmanager
def _generating(models: tuple[PreTrainedModel, ...]) -> Iterator[None]:
    """Eval mode without gradients, with every module's own training flag restored afterwards.

    no_grad and not inference_mode: rotary embeddings may refresh a buffer of the shared module, and an inference tensor
    left there would break the next training step.
    """
    training = [module for model in models for module in model.modules() if module.training]
    for model in models:
        model.eval()  # type: ignore[no-untyped-call]
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True
