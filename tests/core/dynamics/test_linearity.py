"""The whole measurement on small folders: planted drift, pure noise, and a plain numpy and scipy computation."""

import json

import numpy as np
import pytest
import torch
from scipy import stats

from core.dynamics import nulls
from core.dynamics.linearity import weight_linearity
from core.dynamics.tensor_file import TrajectoryError
from core.dynamics.trajectory import Trajectory
from tests.core.dynamics.folders import SHAPES, walk, write_trajectory

STEPS = [20 * k for k in range(14)]
UNEVEN = [0, 10, 25, 40, 60, 100]
LARGE = {"model.embed_tokens.weight": (400, 40), "model.layers.0.mlp.up_proj.weight": (40, 40)}


def measure(points, **how):
    with Trajectory.open(points) as trajectory:
        return weight_linearity(trajectory, **({"seed": 0} | how))


def test_planted_drift_comes_out_linear(tmp_path):
    result = measure(write_trajectory(tmp_path, STEPS, walk(STEPS, drift=1e-5, noise=1e-5, shapes=LARGE)))
    assert result["r2"]["share_above"] > 0.95
    assert result["excess"]["share_above"] > 0.6
    assert result["r2"]["share_above"] > result["chance_band"]["high"]
    assert result["run_level"]["sign_flip"]["p_value"] == result["run_level"]["sign_flip"]["smallest_p_value"]
    assert result["run_level"]["drift_t"] > 3
    assert "this run is more linear than chance" in result["statement"]
    assert result["statement"].startswith("Excess over chance: +")
    assert "One run is one observation" in result["statement"]


def test_pure_noise_comes_out_as_no_linearity_beyond_chance(tmp_path):
    result = measure(write_trajectory(tmp_path, STEPS, walk(STEPS, drift=0, noise=1e-5, shapes=LARGE)))
    assert abs(result["excess"]["share_above"]) < 0.015
    assert abs(result["excess"]["mean"]) < 0.015
    assert result["run_level"]["sign_flip"]["p_value"] > 0.05
    assert result["run_level"]["drift_t"] == pytest.approx(1, abs=0.05)
    assert result["run_level"]["drifting_share"] == pytest.approx(0.05, abs=0.01)
    assert "no linearity beyond chance" in result["statement"]


def test_noise_through_the_optimizer_is_chance_only_to_the_null_that_knows_the_optimizer(tmp_path):
    """Ten updates per run at momentum 0.9: to a plain walk this is linear, to the driven one it is chance."""
    steps = [0, 2, 4, 6, 8, 10]
    drive = nulls.Drive("adamw", 0.9, 0.999, (1e-5,) * 10)
    size = sum(int(np.prod(shape)) for shape in LARGE.values())
    walks_KN = nulls.driven_walks(steps, drive, size, np.random.default_rng(77))
    weights = []
    for row_N in walks_KN:
        parts = np.split(row_N, np.cumsum([int(np.prod(shape)) for shape in LARGE.values()])[:-1])
        start = {name: np.full(shape, 0.02) for name, shape in LARGE.items()}
        weights.append({name: start[name] + part.reshape(LARGE[name]) for name, part in zip(LARGE, parts, strict=True)})
    points = write_trajectory(tmp_path, steps, weights, dtype=torch.float64)
    plain, driven = measure(points), measure(points, drive=drive)
    assert plain["excess"]["share_above"] > 0.2
    assert driven["excess"]["over"] == "driven"
    assert abs(driven["excess"]["share_above"]) < 0.015
    assert "driven by this run's optimizer" in driven["statement"]


def test_noise_in_few_directions_is_not_called_linear(tmp_path):
    """Weights that all follow three walks: whatever the share, it lies within what three walks may give."""
    rng = np.random.default_rng(11)
    walks_KR = nulls.plain_walks(STEPS, 3, rng)
    mixture = {name: rng.standard_normal((3, *shape)) for name, shape in LARGE.items()}
    weights = [
        {name: 0.02 + 1e-5 * np.einsum("r,r...->...", row_R, mix) for name, mix in mixture.items()}
        for row_R in walks_KR
    ]
    result = measure(write_trajectory(tmp_path, STEPS, weights, dtype=torch.float64))
    assert result["chance_band"]["directions"] == pytest.approx(3, abs=1)
    assert result["chance_band"]["high"] > 0.5
    assert "more linear than chance" not in result["statement"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_agrees_with_a_plain_computation(tmp_path, dtype):
    weights = walk(UNEVEN, drift=1e-4, noise=1e-3)
    for one in weights:
        one["model.norm.weight"] = weights[0]["model.norm.weight"]
    points = write_trajectory(tmp_path, UNEVEN, weights, dtype=dtype)
    result = measure(points)
    r2, names, all_KN, constant = [], [], [], 0
    for name in SHAPES:
        stored = np.stack([torch.from_numpy(one[name]).to(dtype).to(torch.float64).numpy().ravel() for one in weights])
        all_KN.append(stored - stored[0])
        for column in stored.T:
            if (column == column[0]).all():
                constant += 1
            else:
                r2.append(stats.pearsonr(np.array(UNEVEN, dtype=float), column).statistic ** 2)
                names.append(name)
    r2, names = np.array(r2), np.array(names)
    assert result["trajectory"]["constant"] == constant >= 16
    assert result["r2"]["share_above"] == (r2 > 0.7).mean()
    assert result["r2"]["mean"] == pytest.approx(r2.mean(), rel=2e-6)
    for key, q in (("q1", 0.25), ("median", 0.5), ("q3", 0.75)):
        assert result["r2"][key] == pytest.approx(np.quantile(r2, q), abs=0.003)
    for tensor in result["tensors"]:
        own = r2[names == tensor["name"]]
        if len(own):
            assert tensor["mean"] == pytest.approx(own.mean(), rel=2e-6)
            assert tensor["share_above"] == (own > 0.7).mean()
        else:
            assert (tensor["mean"], tensor["share_above"]) == (None, None)
    increments = np.diff(np.concatenate(all_KN, axis=1), axis=0)
    np.testing.assert_allclose(result["run_level"]["increments_gram"], increments @ increments.T, rtol=2e-5, atol=1e-8)


def test_the_heat_map_weighs_elements_and_has_a_special_column(tmp_path):
    result = measure(write_trajectory(tmp_path, UNEVEN, walk(UNEVEN, drift=1e-4, noise=1e-3)))
    heat = result["heat_map"]
    assert heat["columns"] == ["0", "1", "Special"]
    assert sorted(heat["modules"]) == ["embed_tokens", "input_layernorm", "norm", "self_attn.q_proj"]
    assert set(heat["modules"][:2]) == {"input_layernorm", "self_attn.q_proj"}
    cells = dict(zip(heat["modules"], zip(heat["mean_r2"], heat["kept"], strict=True), strict=True))
    assert cells["embed_tokens"][0][:2] == [None, None]
    assert cells["embed_tokens"][1] == [0, 0, 960]
    assert cells["self_attn.q_proj"][1] == [256, 256, 0]
    total = sum(
        mean * kept
        for row, counts in zip(heat["mean_r2"], heat["kept"], strict=True)
        for mean, kept in zip(row, counts, strict=True)
        if mean is not None
    )
    assert total / result["trajectory"]["kept"] == pytest.approx(result["r2"]["mean"], rel=1e-12)


def test_bfloat16_folders_are_labelled_and_compared_with_walks_rounded_the_same_way(tmp_path):
    """Steps far below the format's spacing: most increments are 0 and R2 of noise is much lower than a plain walk's."""
    points = write_trajectory(tmp_path, STEPS, walk(STEPS, drift=0, noise=2e-6, shapes=LARGE), dtype=torch.bfloat16)
    result = measure(points)
    assert result["trajectory"]["dtypes"] == {"BF16": 17600}
    assert result["null_rounded_as"] == "BF16"
    assert 0.1 < result["trajectory"]["kept_share"] < 0.9
    assert abs(result["excess"]["share_above"]) < 0.03
    assert result["chance_band"]["low"] < result["r2"]["share_above"] < result["chance_band"]["high"]
    assert "rounded to BF16" in result["statement"]


def test_a_sample_estimates_the_whole_and_says_its_size(tmp_path):
    points = write_trajectory(tmp_path, STEPS, walk(STEPS, drift=1e-6, noise=1e-5, shapes=LARGE))
    whole, part = measure(points), measure(points, sample=4000)
    assert part["trajectory"]["measured"] == part["trajectory"]["sample"] == 4000
    assert part["r2"]["mean"] == pytest.approx(whole["r2"]["mean"], abs=0.02)
    assert part["r2"]["mean"] != whole["r2"]["mean"]


def test_relative_change_is_binned(tmp_path):
    weights = [{"w": np.array([1.0, 1.0, 0.0, 2.0]) + k * np.array([1e-3, 0.02, 0.1, 0.0])} for k in range(4)]
    bins = measure(write_trajectory(tmp_path, [0, 1, 2, 3], weights, dtype=torch.float64))["relative_change"]
    filled = {(one["from"], one["to"]): one["weights"] for one in bins["bins"] if one["weights"]}
    assert filled == {(1e-3, 1e-2): 1, (5e-2, 1e-1): 1}
    assert bins["began_at_zero"]["weights"] == 1
    assert bins["began_at_zero"]["mean_r2"] == pytest.approx(1)


def test_examples_are_changed_weights_with_their_own_numbers(tmp_path):
    weights = walk(UNEVEN, drift=1e-4, noise=1e-3)
    examples = measure(write_trajectory(tmp_path, UNEVEN, weights, dtype=torch.float64))["examples"]
    assert len(examples) == 16
    for example in examples:
        values = np.array([one[example["tensor"]].ravel()[example["index"]] for one in weights])
        np.testing.assert_allclose(example["change"], values - values[0], rtol=0, atol=1e-18)
        assert example["r2"] == pytest.approx(stats.pearsonr(UNEVEN, values).statistic ** 2, rel=1e-9)


def test_rank_1_share_of_the_change_is_reported_per_matrix(tmp_path):
    base, (left, right) = np.ones((20, 30)), (np.arange(1, 21.0), np.arange(1, 31.0))
    weights = [{"a.weight": base + k * 1e-4 * np.outer(left, right), "b.bias": np.ones(4) * k} for k in range(4)]
    tensors = measure(write_trajectory(tmp_path, [0, 1, 2, 3], weights))["tensors"]
    assert {one["name"]: one["rank_1_share"] for one in tensors} == {
        "a.weight": pytest.approx(1, abs=1e-4),
        "b.bias": None,
    }


def test_the_rank_of_a_matrix_that_is_too_large_to_hold_is_read_again(tmp_path, monkeypatch):
    weights = walk(UNEVEN, drift=1e-4, noise=1e-3)
    points = write_trajectory(tmp_path, UNEVEN, weights)
    held = measure(points)["tensors"]
    monkeypatch.setattr("core.dynamics.collect._HELD_ELEMENTS", 0)
    monkeypatch.setattr("core.dynamics.collect._ROWS_BYTES", 4 * 16 * 7)
    again = measure(points)["tensors"]
    for one, other in zip(held, again, strict=True):
        assert (one["rank_1_share"] is None) == (len(one["shape"]) == 1)
        assert other["rank_1_share"] == pytest.approx(one["rank_1_share"], abs=1e-3)


def test_reading_a_change_again_leaves_the_pass_alone(tmp_path, monkeypatch):
    """The rank of one tensor is taken from the files while the next tensors are read from them."""
    shapes = {f"{name}.weight": (300, 400) for name in "abcdefgh"}
    points = write_trajectory(tmp_path, UNEVEN, walk(UNEVEN, drift=1e-4, noise=1e-3, shapes=shapes))
    monkeypatch.setattr("core.dynamics.collect._CHUNK_BYTES", 1 << 16)
    held = measure(points)
    monkeypatch.setattr("core.dynamics.collect._HELD_ELEMENTS", 0)
    again = measure(points)
    for result in (held, again):
        for tensor in result["tensors"]:
            tensor["rank_1_share"] = None
    assert again == held


def test_pieces_of_any_size_give_the_same_counts(tmp_path, monkeypatch):
    points = write_trajectory(tmp_path, STEPS, walk(STEPS, drift=1e-5, noise=1e-5, shapes=LARGE))
    whole = measure(points)
    monkeypatch.setattr("core.dynamics.collect._PIECE_ELEMENTS", 37)
    monkeypatch.setattr("core.dynamics.collect._CHUNK_BYTES", 1 << 14)
    parts = measure(points)
    for key in ("histogram", "examples"):
        assert parts[key] == whole[key]
    assert parts["r2"]["mean"] == pytest.approx(whole["r2"]["mean"], rel=1e-12)
    counts = [[one["weights"] for one in result["relative_change"]["bins"]] for result in (whole, parts)]
    assert counts[0] == counts[1]
    grams = [np.array(result["run_level"]["increments_gram"]) for result in (whole, parts)]
    # Differences of path products that reach 0.12, summed in float32 in other pieces.
    np.testing.assert_allclose(grams[1], grams[0], rtol=0, atol=1e-7)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("row", [0, 3, 5])
@pytest.mark.parametrize("sample", [None, 100])
def test_a_number_that_is_not_finite_is_refused_by_the_name_of_its_file(tmp_path, value, row, sample):
    weights = walk(UNEVEN, drift=1e-4, noise=1e-3)
    weights[row]["model.norm.weight"][7] = value
    points = write_trajectory(tmp_path, UNEVEN, weights)
    with pytest.raises(TrajectoryError, match=f"step-{UNEVEN[row]}/model.safetensors: tensor model.norm.weight"):
        measure(points, sample=sample)


def test_large_finite_numbers_are_not_refused(tmp_path):
    """Squares of these leave float32; the numbers themselves are fine."""
    weights = [{"a.weight": np.full((4, 5), 1e30) * (1 + k)} for k in range(4)]
    assert measure(write_trajectory(tmp_path, [0, 1, 2, 3], weights))["r2"]["mean"] == pytest.approx(1)


def test_stacked_experts_have_the_mean_share_of_their_matrices(tmp_path):
    rng = np.random.default_rng(0)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    change = np.stack([np.outer(np.arange(6.0), np.arange(9.0)), rng.standard_normal((6, 9)), np.zeros((6, 9))])
    weights = [{name: np.ones((3, 6, 9)) + k * 1e-3 * change} for k in range(4)]
    values = np.linalg.svd(change[1], compute_uv=False) ** 2
    (tensor,) = measure(write_trajectory(tmp_path, [0, 1, 2, 3], weights))["tensors"]
    assert tensor["rank_1_share"] == pytest.approx((1 + values[0] / values.sum()) / 2, abs=1e-3)
    assert (tensor["layer"], tensor["module"]) == (0, "mlp.experts.gate_up_proj")


def test_weights_that_never_move_are_no_result(tmp_path):
    result = measure(write_trajectory(tmp_path, STEPS, [walk(STEPS, drift=0, noise=1)[0]] * len(STEPS)))
    assert result["trajectory"]["kept"] == 0
    assert "No weight changed" in result["statement"]
    json.dumps(result, allow_nan=False)


def test_equal_seeds_give_equal_results_whatever_the_file_layout(tmp_path):
    weights = walk(UNEVEN, drift=1e-4, noise=1e-3)
    one = measure(write_trajectory(tmp_path / "one", UNEVEN, weights), sample=500)
    again = measure(write_trajectory(tmp_path / "again", UNEVEN, weights), sample=500)
    shards = measure(write_trajectory(tmp_path / "shards", UNEVEN, weights, shards=3), sample=500)
    assert json.dumps(one, allow_nan=False) == json.dumps(again)
    assert shards["r2"]["mean"] == pytest.approx(one["r2"]["mean"], rel=1e-12)
    assert shards["examples"] == one["examples"]
    assert measure(write_trajectory(tmp_path / "x", UNEVEN, weights), sample=500, seed=1)["r2"] != one["r2"]
