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
from transformers.cache_utils import CacheLayerMixin

_GROWTH = 256


class BatchLayer(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of one layer: buffers [rows, heads, capacity, head size] and the window of them in use."""

    is_sliding = False

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit
        self.rows = 0
        self.start = 0
        self.end = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Required by the interface; buffers are made by :meth:`fill`."""
        raise NotImplementedError("a BatchLayer is filled from a prefill, never by its first update")

    def fill(self, keys_BHTD: Tensor, values_BHTD: Tensor, at: slice, width: int, rows: int) -> None:
        """Put the prefilled keys and values of the rows ``at``, ``width`` tokens each, into buffers for ``rows``."""
        if not self.is_initialized:
            capacity = min(self.limit, width + _GROWTH)
            self.keys = keys_BHTD.new_empty((rows, keys_BHTD.shape[1], capacity, keys_BHTD.shape[3]))
            self.values = values_BHTD.new_empty((rows, values_BHTD.shape[1], capacity, values_BHTD.shape[3]))
            self.is_initialized = True
            self.rows, self.end = rows, width
        self.keys[at, :, :width] = keys_BHTD
        self.values[at, :, :width] = values_BHTD

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Append the keys and values of new tokens and return views of all that attention should see."""
        new_end = self.end + key_states.shape[2]
        if new_end > self.keys.shape[2]:
            self._grow(new_end)
        self.keys[: self.rows, :, self.end : new_end] = key_states
        self.values[: self.rows, :, self.end : new_end] = value_states
        self.end = new_end
        window = slice(self.start, self.end)
        return self.keys[: self.rows, :, window], self.values[: self.rows, :, window]

    def _grow(self, needed: int) -> None:
        capacity = max(needed, min(self.limit, 2 * self.keys.shape[2]))
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old.new_empty((self.rows, old.shape[1], capacity, old.shape[3]))
            new[:, :, self.start : self.end] = old[: self.rows, :, self.start : self.end]
            setattr(self, name, new)

    def move_row(self, source: int, target: int) -> None:
        """Copy one row over another that has finished."""
        window = slice(self.start, self.end)
        self.keys[target, :, window] = self.keys[source, :, window]
        self.values[target, :, window] = self.values[source, :, window]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length of what attention will see for ``query_length`` new tokens, and its offset (always 0)."""
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        """Tokens in use, padding that some row still needs included."""
        return self.end - self.start

    def get_max_length(self) -> int:
        """No maximum that the model needs to know of: the caller sizes the buffers."""
        return -1


class BatchCache(Cache):  # type: ignore[misc]
    """One :class:`BatchLayer` per model layer, kept in step."""

    def __init__(self, *, rows: int, limit: int) -> None:
        super().__init__(layers=[])
        self.rows = rows
        self.limit = limit

    def fill_from(self, prefilled: DynamicCache, source_rows: Tensor, at: slice, width: int) -> None:
        """Take rows ``at`` from a prefill: row i of them is row ``source_rows[i]`` of ``prefilled``."""
        for index, layer in enumerate(prefilled.layers):
            if index == len(self.layers):
                self.layers.append(BatchLayer(self.limit))
            self.layers[index].fill(layer.keys[source_rows], layer.values[source_rows], at, width, self.rows)

    def drop_rows(self, finished: list[int]) -> list[tuple[int, int]]:
        """Remove rows by moving the last rows into their places; return the moves as (from, to), in order."""
        moves: list[tuple[int, int]] = []
        last = self.rows - 1
        for row in sorted(finished, reverse=True):
            if row != last:
                moves.append((last, row))
            last -= 1
        self.rows = last + 1
        for layer in self.layers:
            for source, target in moves:
                layer.move_row(source, target)
            layer.rows = self.rows
        return moves

    def skip_leading(self, columns: int) -> None:
        """Leave ``columns`` more leading positions, padding in every remaining row, out of the view."""
        for layer in self.layers:
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
