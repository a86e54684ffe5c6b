"""Names of tensors to places in the heat map; samples of positions; shares of rank 1."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.dynamics.modules import Place, places
from core.dynamics.rank import leading_share, streamed_leading_share
from core.dynamics.sampling import sampled_positions


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("model.embed_tokens.weight", Place(None, "embed_tokens")),
        ("model.norm.weight", Place(None, "norm")),
        ("lm_head.weight", Place(None, "lm_head")),
        ("model.layers.11.self_attn.q_proj.weight", Place(11, "self_attn.q_proj")),
        ("model.layers.0.self_attn.q_proj.bias", Place(0, "self_attn.q_proj.bias")),
        ("model.layers.3.mlp.experts.17.gate_proj.weight", Place(3, "mlp.experts.gate_proj")),
        ("transformer.h.2.ln_1.weight", Place(2, "ln_1")),
        ("transformer.wte.weight", Place(None, "wte")),
    ],
)
def test_a_name_has_a_place(name, place):
    assert places([name])[name] == place


def test_two_towers_stay_apart():
    found = places(["vision.blocks.0.attn.weight", "model.layers.0.attn.weight", "model.norm.weight"])
    assert found["vision.blocks.0.attn.weight"] == Place(0, "vision.blocks:attn")
    assert found["model.layers.0.attn.weight"] == Place(0, "model.layers:attn")
    assert found["model.norm.weight"] == Place(None, "norm")


@settings(max_examples=60, deadline=None)
@given(
    total=st.integers(1, 3000), n=st.integers(1, 4000), seed=st.integers(0, 2**63), cuts=st.lists(st.integers(0, 3000))
)
def test_a_sample_has_its_size_and_does_not_depend_on_chunks(total, n, seed, cuts):
    whole = sampled_positions(0, total, total=total, n=n, seed=seed)
    assert len(np.unique(whole)) == len(whole) == min(n, total)
    assert whole.min() >= 0
    assert whole.max() < total
    edges = sorted({0, total, *(cut for cut in cuts if cut < total)})
    parts = [sampled_positions(first, stop, total=total, n=n, seed=seed) for first, stop in pairwise(edges)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_a_sample_of_a_very_large_model_does_not_overflow():
    total, n = 700_000_000_000, 300_000_000_000
    found = sampled_positions(total - 100_000, total, total=total, n=n, seed=1)
    assert len(found) == pytest.approx(100_000 * n / total, abs=2)
    assert found.max() < total
    assert (np.diff(found) > 0).all()


def test_every_position_is_drawn_equally_often():
    counts = np.zeros(10)
    for seed in range(3000):
        counts[sampled_positions(0, 10, total=10, n=2, seed=seed * 7919)] += 1
    np.testing.assert_allclose(counts / 3000, 0.2, atol=0.035)


@pytest.mark.parametrize("shape", [(40, 12), (5, 60)])
def test_the_leading_share_is_that_of_the_singular_values(shape):
    rng = np.random.default_rng(0)
    change = rng.standard_normal(shape) + 2 * np.outer(rng.standard_normal(shape[0]), rng.standard_normal(shape[1]))
    values = np.linalg.svd(change, compute_uv=False) ** 2
    assert leading_share(change.astype(np.float32), 0) == pytest.approx(values[0] / values.sum(), rel=1e-4)
    assert leading_share((change * 1e-30).astype(np.float32), 0) == pytest.approx(values[0] / values.sum(), rel=1e-4)


def test_a_matrix_that_did_not_change_has_no_share():
    assert leading_share(np.zeros((3, 4), dtype=np.float32), 0) is None


def test_a_matrix_that_comes_in_blocks_of_rows_has_the_share_of_the_whole():
    change = np.random.default_rng(4).standard_normal((50, 12)).astype(np.float32)
    change += 3 * np.outer(np.arange(50), np.ones(12)).astype(np.float32) / 50
    values = np.linalg.svd(change.astype(np.float64), compute_uv=False) ** 2
    found = streamed_leading_share(lambda: (change[at : at + 7] for at in range(0, 50, 7)), 50, 12, seed=0)
    assert found == pytest.approx(values[0] / values.sum(), abs=5e-4)
