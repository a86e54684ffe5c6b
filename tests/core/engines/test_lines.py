"""Lines through checkpoints: exact at their anchors, right on problems whose answer is known, fitted as numpy fits."""

from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from safetensors.torch import save_file

from core.engines.lines import (
    FittedLine,
    FolderWeights,
    NamedOnly,
    TwoPointLine,
    distance,
    is_norm,
    least_squares_shares,
)
from core.engines.models import ModelError
from core.rl.optim import AdamW

FLOATS = st.floats(-1e4, 1e4, width=32)


@given(pairs=st.lists(st.tuples(FLOATS, FLOATS), min_size=1, max_size=20))
def test_beta_0_and_1_are_the_anchors_bit_by_bit(pairs: list[tuple[float, float]]) -> None:
    a, b = ({"w": torch.tensor([pair[side] for pair in pairs])} for side in (0, 1))
    assert torch.equal(TwoPointLine(a, b, 0.0)["w"], a["w"])
    assert torch.equal(TwoPointLine(a, b, 1.0)["w"], b["w"])


def test_the_naive_form_is_not_exact_where_this_one_is() -> None:
    a, b = torch.tensor([0.1]), torch.tensor([1e-9])
    assert not torch.equal(a + (b - a), b)
    assert torch.equal(TwoPointLine({"w": a}, {"w": b}, 1.0)["w"], b)


@given(beta=st.floats(-2, 6), start=FLOATS, end=FLOATS)
def test_between_and_beyond_it_is_the_line(beta: float, start: float, end: float) -> None:
    found = float(TwoPointLine({"w": torch.tensor([start])}, {"w": torch.tensor([end])}, beta)["w"])
    largest = max(abs(start), abs(end), abs(end - start) * max(1.0, abs(beta)))
    assert found == pytest.approx(start + beta * (end - start), abs=1e-6 * largest + 1e-30)


def test_extrapolating_gradient_flow_on_a_quadratic_gives_the_known_point() -> None:
    """w' = -H (w - m) from w_0 has w(t) = m + exp(-Ht)(w_0 - m); its chord from 0 to t leads on to a known point."""
    curvature, minimum = torch.tensor([0.5, 2.0, 0.01], dtype=torch.float64), torch.tensor([1.0, -2.0, 3.0]).double()
    beginning, time, beta = torch.tensor([4.0, 1.0, -1.0]).double(), 0.3, 2.5

    def flow(t: float) -> torch.Tensor:
        return minimum + torch.exp(-curvature * t) * (beginning - minimum)

    line = TwoPointLine({"w": flow(0).float()}, {"w": flow(time).float()}, beta)
    expected = minimum + (1 + beta * (torch.exp(-curvature * time) - 1)) * (beginning - minimum)
    torch.testing.assert_close(line["w"].double(), expected, rtol=1e-6, atol=1e-6)
    # Along the flat direction the chord foresees the flow itself; along the steep one it overshoots the minimum.
    foreseen = flow(beta * time)
    assert abs(float(line["w"][2]) - float(foreseen[2])) < 1e-4
    assert float(line["w"][1]) < float(minimum[1]) < float(foreseen[1])


@given(
    steps=st.lists(st.integers(0, 500), min_size=2, max_size=7, unique=True),
    target=st.integers(0, 1000),
    seed=st.integers(0, 1000),
)
def test_least_squares_is_numpys_polyfit(steps: list[int], target: int, seed: int) -> None:
    values_KN = np.random.default_rng(seed).normal(size=(len(steps), 5)).astype(np.float32)
    line = FittedLine(
        [(float(step), {"w": torch.from_numpy(row)}) for step, row in zip(steps, values_KN, strict=True)], float(target)
    )
    slope_N, cut_N = np.polyfit(np.array(steps, float), values_KN.astype(float), 1)
    largest = np.abs(slope_N * target).max() + np.abs(cut_N).max() + 1
    np.testing.assert_allclose(line["w"].numpy(), slope_N * target + cut_N, atol=1e-5 * largest)
    assert sum(least_squares_shares(steps, target)) == pytest.approx(1.0)


def test_points_on_a_line_are_fitted_exactly_whatever_their_number() -> None:
    points = [(float(step), {"w": torch.tensor([1.0 + 0.25 * step])}) for step in (0, 4, 8, 20)]
    assert float(FittedLine(points, 40.0)["w"]) == 11.0


def test_norms_stay_with_the_later_checkpoint_when_they_are_left_out() -> None:
    a = {"model.norm.weight": torch.zeros(2), "model.layers.0.mlp.up_proj.weight": torch.zeros(2)}
    b = {name: torch.ones(2) for name in a}
    for line in (
        TwoPointLine(a, b, 3.0, skip_norms=True),
        FittedLine([(0.0, a), (1.0, b)], 3.0, skip_norms=True),
    ):
        assert line["model.norm.weight"].tolist() == [1.0, 1.0]
        assert line["model.layers.0.mlp.up_proj.weight"].tolist() == [3.0, 3.0]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("model.layers.3.input_layernorm.weight", True),
        ("model.layers.3.self_attn.q_norm.weight", True),
        ("transformer.h.0.ln_1.bias", True),
        ("model.norm.weight", True),
        ("model.layers.3.self_attn.q_proj.weight", False),
        ("lm_head.weight", False),
        ("model.embed_tokens.weight", False),
    ],
)
def test_norms_are_told_by_their_module(name: str, expected: bool) -> None:
    assert is_norm(name) == expected


def test_a_folder_is_read_in_fp32_and_weights_that_differ_in_name_or_shape_are_refused(tmp_path: Path) -> None:
    save_file(
        {"w": torch.tensor([1.5], dtype=torch.bfloat16), "count": torch.tensor([3])}, tmp_path / "model.safetensors"
    )
    with FolderWeights(tmp_path) as folder:
        assert (folder["w"].dtype, folder["count"].dtype) == (torch.float32, torch.int64)
        assert folder.shape("w") == (1,)
        with pytest.raises(ModelError, match="different weights"):
            TwoPointLine(folder, {"w": torch.ones(1)}, 2.0)
        with pytest.raises(ModelError, match="shapes"):
            TwoPointLine(NamedOnly(folder, ["w"]), {"w": torch.ones(2)}, 2.0)["w"]
        assert TwoPointLine(folder, folder, 2.0)["count"].tolist() == [3]


def test_distance_is_euclidean_over_all_weights() -> None:
    a, b = {"x": torch.zeros(2), "y": torch.zeros(1)}, {"x": torch.tensor([3.0, 0.0]), "y": torch.tensor([4.0])}
    assert distance(a, b) == 5.0


def test_after_a_jump_a_step_at_rate_0_leaves_masters_and_bf16_weights_as_they_are() -> None:
    """Weights written from outside must refresh the fp32 masters, else the next step takes them back."""
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(64, dtype=torch.bfloat16))
    optimizer = AdamW([("w", weight)], lr=1e-3)
    start = {"w": optimizer.masters["w"].clone()}
    for _ in range(3):
        weight.grad = torch.randn_like(weight)
        optimizer.step()
    optimizer.load_masters(TwoPointLine(start, optimizer.masters, 1.7))
    master, rounded = optimizer.masters["w"].clone(), weight.detach().clone()
    assert torch.equal(rounded, master.bfloat16())
    weight.grad = torch.randn_like(weight)
    optimizer.step(0.0)
    assert torch.equal(optimizer.masters["w"], master)
    assert torch.equal(weight, rounded)
    assert optimizer.moments["exp_avg"]["w"].any()
