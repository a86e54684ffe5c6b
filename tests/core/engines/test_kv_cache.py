import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DynamicCache, LlamaConfig, Qwen3NextConfig

from core.engines import kv_cache
from core.engines.kv_cache import BatchCache, left_pad, uses_plain_attention


def _prefilled(rows, width):
    cache = DynamicCache()
    values = torch.arange(rows * width, dtype=torch.float32).reshape(rows, 1, width, 1)
    for layer in range(2):
        cache.update(values + 1000 * layer, -values - 1000 * layer, layer)
    return cache


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_appending_and_dropping_rows_is_what_lists_would_do(data):
    """Model: one Python list per row. Every view must equal those lists, whatever was appended, dropped or skipped."""
    rows, width = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 4))
    cache = BatchCache(rows=rows, limit=width + 6)
    kv_cache._GROWTH, roomy = data.draw(st.integers(1, 4)), kv_cache._GROWTH
    try:
        cache.fill_from(_prefilled(rows, width), torch.arange(rows), slice(0, rows))
    finally:
        kv_cache._GROWTH = roomy
    lists = [[float(row * width + column) for column in range(width)] for row in range(rows)]
    for step in range(6):
        new = [10_000.0 + 100 * step + row for row in range(len(lists))]
        lists = [[*line, value] for line, value in zip(lists, new, strict=True)]
        keys_BHTD = torch.tensor(new).reshape(-1, 1, 1, 1)
        for layer in range(2):
            keys, values = cache.update(keys_BHTD + 1000 * layer, -keys_BHTD - 1000 * layer, layer)
            assert keys[:, 0, :, 0].tolist() == [[x + 1000 * layer for x in line] for line in lists]
            assert torch.equal(values, -keys)
        assert cache.get_seq_length() == len(lists[0])
        finished = data.draw(st.lists(st.integers(0, len(lists) - 1), unique=True, max_size=len(lists) - 1))
        moves = cache.drop_rows(finished)
        kept = sorted(map(str, (line for i, line in enumerate(lists) if i not in finished)))
        for source, target in moves:
            lists[target] = lists[source]
        lists = lists[: cache.rows]
        assert sorted(map(str, lists)) == kept
        if data.draw(st.booleans()):
            cache.skip_leading(1)
            lists = [line[1:] for line in lists]


def test_rows_may_share_a_prefilled_row():
    cache = BatchCache(rows=3, limit=9)
    cache.fill_from(_prefilled(2, 2), torch.tensor([0, 1, 1]), slice(0, 3))
    keys, _ = cache.update(torch.zeros(3, 1, 1, 1), torch.zeros(3, 1, 1, 1), 0)
    assert keys[:, 0, :2, 0].tolist() == [[0.0, 1.0], [2.0, 3.0], [2.0, 3.0]]


def test_left_padding_puts_the_first_real_token_at_position_zero():
    ids, mask, positions = left_pad([(7, 8, 9), (5,)], 0, torch.device("cpu"))
    assert ids.tolist() == [[7, 8, 9], [0, 0, 5]]
    assert mask.tolist() == [[1, 1, 1], [0, 0, 1]]
    assert positions.tolist() == [[0, 1, 2], [0, 0, 0]]


def test_models_with_recurrent_layers_are_recognised():
    assert uses_plain_attention(LlamaConfig())
    assert not uses_plain_attention(Qwen3NextConfig())
