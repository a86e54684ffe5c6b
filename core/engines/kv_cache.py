"""The key/value cache of one batch: preallocated, grown in place, and shrunk when a row finishes.

``transformers``' DynamicCache concatenates and so copies every key and value at each token, and has no cheap way to drop
a row. Here a layer is one buffer; a new token is written in place, a finished row is overwritten by the last row, and
leading padding that no remaining row needs is left out of the view. The class follows the layer interface of
``transformers.cache_utils`` and is private to one batch of one ``generate`` call: nothing in it survives that call.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import CacheLayerMixin, DynamicLayer

_GROWTH = 256


class BatchLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """Keys and values of one layer: buffers [rows, heads, capacity, head size] and the window of them in use."""

    is_sliding = False

    def __init__(self, keys_BHTD: Tensor, values_BHTD: Tensor, *, limit: int) -> None:
        """Start with buffers for as many rows as ``keys_BHTD`` has, none of whose positions are in use yet."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.is_initialized = True
        self.limit = limit
        self.rows = keys_BHTD.shape[0]
        self.start = 0
        self.end = 0
        self._keys_BHTD = keys_BHTD
        self._values_BHTD = values_BHTD

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Required by the interface; this layer always has its buffers."""

    def fill(self, keys_BHTD: Tensor, values_BHTD: Tensor, at: slice) -> None:
        """Put the prefilled keys and values of the rows ``at`` into the first positions."""
        self.end = keys_BHTD.shape[2]
        self._keys_BHTD[at, :, : self.end] = keys_BHTD
        self._values_BHTD[at, :, : self.end] = values_BHTD

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Append the keys and values of new tokens and return views of all that attention should see."""
        new_end = self.end + key_states.shape[2]
        if new_end > self._keys_BHTD.shape[2]:
            self._keys_BHTD = self._grown(self._keys_BHTD, new_end)
            self._values_BHTD = self._grown(self._values_BHTD, new_end)
        self._keys_BHTD[: self.rows, :, self.end : new_end] = key_states
        self._values_BHTD[: self.rows, :, self.end : new_end] = value_states
        self.end = new_end
        window = slice(self.start, self.end)
        return self._keys_BHTD[: self.rows, :, window], self._values_BHTD[: self.rows, :, window]

    def _grown(self, old_BHTD: Tensor, needed: int) -> Tensor:
        capacity = max(needed, min(self.limit, 2 * old_BHTD.shape[2]))
        new_BHTD = old_BHTD.new_empty((self.rows, old_BHTD.shape[1], capacity, old_BHTD.shape[3]))
        new_BHTD[:, :, self.start : self.end] = old_BHTD[: self.rows, :, self.start : self.end]
        return new_BHTD

    def move_row(self, source: int, target: int) -> None:
        """Copy one row over another that has finished."""
        window = slice(self.start, self.end)
        self._keys_BHTD[target, :, window] = self._keys_BHTD[source, :, window]
        self._values_BHTD[target, :, window] = self._values_BHTD[source, :, window]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length of what attention will see for ``query_length`` new tokens, and its offset (always 0)."""
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        """Tokens in use, padding that some row still needs included."""
        return self.end - self.start

    def get_max_length(self) -> int:
        """No maximum that the model needs to know of: the caller sizes the buffers."""
        return -1


class BatchCache(Cache):
    """One :class:`BatchLayer` per model layer, kept in step."""

    def __init__(self, *, rows: int, limit: int) -> None:
        """``rows`` sequences of at most ``limit`` positions each, prompt padding included."""
        self.batch_layers: list[BatchLayer] = []
        super().__init__(layers=self.batch_layers)  # type: ignore[arg-type]
        self.rows = rows
        self.limit = limit

    def fill_from(self, prefilled: DynamicCache, source_rows: Tensor, at: slice) -> None:
        """Take the rows ``at`` from a prefill: the i-th of them is row ``source_rows[i]`` of ``prefilled``."""
        for index, layer in enumerate(prefilled.layers):
            assert isinstance(layer, DynamicLayer)
            assert layer.keys is not None
            assert layer.values is not None
            keys_BHTD, values_BHTD = layer.keys, layer.values
            if index == len(self.batch_layers):
                buffers = (self._buffer(keys_BHTD), self._buffer(values_BHTD))
                self.batch_layers.append(BatchLayer(*buffers, limit=self.limit))
            self.batch_layers[index].fill(keys_BHTD[source_rows], values_BHTD[source_rows], at)

    def _buffer(self, like_BHTD: Tensor) -> Tensor:
        _, heads, width, size = like_BHTD.shape
        return like_BHTD.new_empty((self.rows, heads, min(self.limit, width + _GROWTH), size))

    def drop_rows(self, finished: list[int]) -> list[tuple[int, int]]:
        """Remove rows by moving the last rows into their places; return the moves as (from, to), in order."""
        moves: list[tuple[int, int]] = []
        last = self.rows - 1
        for row in sorted(finished, reverse=True):
            if row != last:
                moves.append((last, row))
            last -= 1
        self.rows = last + 1
        for layer in self.batch_layers:
            for source, target in moves:
                layer.move_row(source, target)
            layer.rows = self.rows
        return moves

    def skip_leading(self, columns: int) -> None:
        """Leave ``columns`` more leading positions, padding in every remaining row, out of the view."""
        for layer in self.batch_layers:
            layer.start += columns


def uses_plain_attention(config: Any) -> bool:
    """Whether every layer of the model keeps ordinary keys and values, which this cache needs."""
    kinds = set(getattr(config.get_text_config(), "layer_types", None) or ["full_attention"])
    return kinds <= {"full_attention", "sliding_attention"}


def left_pad(prompts: list[tuple[int, ...]], pad_id: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids, mask and position ids (each B, T): prompts end in the last column, the first real token is position 0."""
    width = max(len(prompt) for prompt in prompts)
    ids_BT = torch.tensor([[pad_id] * (width - len(p)) + list(p) for p in prompts])
    mask_BT = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    positions_BT = (mask_BT.cumsum(dim=1) - 1).clamp(min=0)
    return ids_BT.to(device), mask_BT.to(device), positions_BT.to(device)
