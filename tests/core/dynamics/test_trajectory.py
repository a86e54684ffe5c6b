"""Trajectories: what is read, in what form, and what is refused by name."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from core.dynamics.tensor_file import TrajectoryError
from core.dynamics.trajectory import Jumped, Point, Trajectory
from tests.core.dynamics.folders import SHAPES, walk, write_folder, write_trajectory

STEPS = [0, 10, 25, 40, 60]


def read_all(points, max_bytes=8 << 20):
    """Every tensor's path [K, N] and start [N], put together from chunks."""
    paths, starts = {}, {}
    with Trajectory.open(points) as trajectory:
        for chunk in trajectory.chunks(max_bytes):
            trajectory.check_finite(chunk)
            initial_N, path_JN = trajectory.path_of(chunk)
            origin_1N = np.zeros((1, chunk.elements), dtype=path_JN.dtype)
            paths.setdefault(chunk.tensor.name, []).append(np.concatenate([origin_1N, path_JN]))
            starts.setdefault(chunk.tensor.name, []).append(initial_N.copy())
        steps = trajectory.steps
    return (
        {name: np.concatenate(parts, axis=1) for name, parts in paths.items()},
        {name: np.concatenate(parts) for name, parts in starts.items()},
        steps,
    )


def refused(points, code, *words):
    with pytest.raises(TrajectoryError) as caught:
        read_all(points)
    assert caught.value.code == code, str(caught.value)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("max_bytes", [5 * 8 * 7, 8 << 20])
def test_paths_are_the_stored_numbers_to_one_rounding(tmp_path, shards, dtype, max_bytes):
    points = write_trajectory(tmp_path, STEPS, walk(STEPS, drift=1e-3, noise=1e-3), shards=shards, dtype=dtype)
    paths, starts, steps = read_all(points, max_bytes)
    assert steps == tuple(STEPS)
    assert set(paths) == set(SHAPES)
    loaded = [{} for _ in points]
    for at, point in enumerate(points):
        for file in point.folder.glob("*.safetensors"):
            loaded[at] |= load_file(file)
    for name, path_KN in paths.items():
        values = np.stack([one[name].to(torch.float64).numpy().reshape(-1) for one in loaded])
        np.testing.assert_array_equal(starts[name], values[0])
        # Differences are taken in float32, one rounding each; of float64 files in float64.
        np.testing.assert_array_equal(path_KN, (values - values[0]).astype(path_KN.dtype))
        assert path_KN.dtype == (np.float64 if dtype == torch.float64 else np.float32)


def test_a_tied_head_is_counted_once_and_an_untied_one_is_not_left_out(tmp_path):
    weights = [one | {"lm_head.weight": one["model.embed_tokens.weight"]} for one in walk(STEPS, drift=1e-3, noise=0)]
    tied = write_trajectory(tmp_path / "tied", STEPS, weights, config={"tie_word_embeddings": True})
    untied = write_trajectory(tmp_path / "untied", STEPS, weights, config={"tie_word_embeddings": False})
    with Trajectory.open(tied) as trajectory:
        assert trajectory.tied == ("lm_head.weight",)
        assert trajectory.elements == sum(int(np.prod(shape)) for shape in SHAPES.values())
    with Trajectory.open(untied) as trajectory:
        assert "lm_head.weight" in [tensor.name for tensor in trajectory.tensors]


def test_one_folder_may_store_the_tied_head_that_another_leaves_out(tmp_path):
    weights = walk(STEPS, drift=1e-3, noise=0)
    with_head = weights[0] | {"lm_head.weight": weights[0]["model.embed_tokens.weight"]}
    config = {"tie_word_embeddings": True}
    points = write_trajectory(tmp_path, STEPS[1:], weights[1:], config=config)
    first = Point(0, write_folder(tmp_path / "base", with_head, config=config))
    assert set(read_all([first, *points])[0]) == set(SHAPES)


def test_numbers_that_are_no_weights_are_named(tmp_path):
    points = write_trajectory(tmp_path, STEPS, walk(STEPS, drift=1e-3, noise=0))
    for point in points:
        tensors = load_file(point.folder / "model.safetensors") | {"counter": torch.arange(3)}
        from safetensors.torch import save_file

        save_file(tensors, point.folder / "model.safetensors")
    with Trajectory.open(points) as trajectory:
        assert trajectory.not_weights == ("counter",)


def test_a_jump_is_taken_out_of_the_path(tmp_path):
    steps = [0, 10, 20, 30]
    weights = [{"w": np.array([value, 1.0])} for value in (1.0, 2.0, 9.0, 10.0, 11.5)]
    marks = [(0, False), (10, False), (10, True), (20, False), (30, False)]
    points = [
        Point(step, write_folder(tmp_path / f"{at}", one), jump)
        for at, ((step, jump), one) in enumerate(zip(marks, weights, strict=True))
    ]
    paths, _, found = read_all(points)
    assert found == tuple(steps)
    np.testing.assert_array_equal(paths["w"], [[0, 0], [1, 0], [2, 0], [3.5, 0]])


def test_a_checkpoint_after_a_jump_is_measured_on_the_path_before_it(tmp_path):
    """W_e is on the line from the cycle's start: 1 -> 2 in ten steps, jumped to 4 with beta 3, then on from there."""
    values = {0: 1.0, 10: 4.0, 20: 5.0, 30: 6.5}
    points = [
        Point(
            step,
            write_folder(tmp_path / f"{step}", {"w": np.array([value, 2.0]), "norm": np.array([value])}),
            jumped=Jumped(0, 3.0, spared=lambda name: name == "norm") if step == 10 else None,
        )
        for step, value in values.items()
    ]
    paths, _, found = read_all(points)
    assert found == (0, 10, 20, 30)
    np.testing.assert_allclose(paths["w"], [[0, 0], [1, 0], [2, 0], [3.5, 0]])
    np.testing.assert_allclose(paths["norm"], [[0], [3], [4], [5.5]])


def test_a_jump_whose_start_is_gone_is_refused(tmp_path):
    points = write_trajectory(tmp_path, STEPS, walk(STEPS, drift=1e-3, noise=0))
    points[2] = replace(points[2], jumped=Jumped(7, 2.0))
    refused(points, "missing_checkpoint", "step 7", "save.keep all")


def test_a_missing_checkpoint_is_refused(tmp_path):
    points = write_trajectory(tmp_path, STEPS, walk(STEPS, drift=1e-3, noise=0))
    refused([*points, Point(70, tmp_path / "step-70")], "missing_checkpoint", "step-70")


def test_a_folder_without_weights_is_refused(tmp_path):
    points = write_trajectory(tmp_path, STEPS, walk(STEPS, drift=1e-3, noise=0))
    (points[2].folder / "model.safetensors").unlink()
    refused(points, "missing_file", "step-25/model.safetensors")


def test_a_missing_shard_is_refused(tmp_path):
    points = write_trajectory(tmp_path, STEPS, walk(STEPS, drift=1e-3, noise=0), shards=3)
    (points[1].folder / "model-00002-of-00003.safetensors").unlink()
    refused(points, "missing_file", "step-10/model-00002-of-00003.safetensors")


def test_an_index_that_names_a_tensor_its_shard_has_not_is_refused(tmp_path):
    points = write_trajectory(tmp_path, STEPS, walk(STEPS, drift=1e-3, noise=0), shards=2)
    index = points[1].folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["ghost"] = "model-00001-of-00002.safetensors"
    index.write_text(json.dumps(content))
    refused(points, "damaged_checkpoint", "step-10/model-00001-of-00002.safetensors", "ghost")


def test_an_index_that_leaves_its_folder_is_refused(tmp_path):
    points = write_trajectory(tmp_path, STEPS, walk(STEPS, drift=1e-3, noise=0))
    (points[1].folder / "model.safetensors.index.json").write_text(
        '{"weight_map": {"w": "../step-0/model.safetensors"}}'
    )
    refused(points, "damaged_checkpoint", "outside the folder")


@pytest.mark.parametrize("keep", [3, 20, -5])
def test_a_file_that_is_cut_short_is_refused(tmp_path, keep):
    points = write_trajectory(tmp_path, STEPS, walk(STEPS, drift=1e-3, noise=0))
    file = points[3].folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    refused(points, "damaged_checkpoint", "step-40/model.safetensors")


def test_a_file_that_is_something_else_is_refused(tmp_path):
    points = write_trajectory(tmp_path, STEPS, walk(STEPS, drift=1e-3, noise=0))
    (points[3].folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"[]" + b"rest")
    refused(points, "damaged_checkpoint", "step-40/model.safetensors", "header")


def sealed(tmp_path, **how):
    weights = walk(STEPS, drift=1e-3, noise=0)
    return [
        Point(step, write_folder(tmp_path / f"step-{step}", one, step=step, **how))
        for step, one in zip(STEPS, weights, strict=True)
    ]


def flip_last_byte(file):
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))


def test_sealed_folders_are_read(tmp_path):
    assert set(read_all(sealed(tmp_path), 5 * 8 * 7)[0]) == set(SHAPES)


@pytest.mark.parametrize("shards", [1, 2])
def test_one_changed_bit_of_a_sealed_folder_is_refused(tmp_path, shards):
    points = sealed(tmp_path, shards=shards)
    file = max(points[4].folder.glob("*.safetensors"))
    flip_last_byte(file)
    refused(points, "damaged_checkpoint", f"step-60/{file.name}", "SHA-256")


def test_a_sealed_folder_of_another_step_is_refused(tmp_path):
    points = sealed(tmp_path)
    refused([*points[:-1], Point(61, points[-1].folder)], "wrong_step", "step-60/manifest.json", "61")


def test_a_sealed_file_of_another_size_is_refused(tmp_path):
    points = sealed(tmp_path)
    file = points[1].folder / "model.safetensors"
    file.write_bytes(file.read_bytes() + b"x")
    refused(points, "damaged_checkpoint", "step-10/model.safetensors", "size")


def test_fewer_than_four_checkpoints_are_refused(tmp_path):
    points = write_trajectory(tmp_path, STEPS, walk(STEPS, drift=1e-3, noise=0))
    refused(points[:3], "too_few_checkpoints", "0, 10, 25")
    refused([], "too_few_checkpoints", "none")


@pytest.mark.parametrize("steps", [[0, 10, 10, 40, 60], [0, 25, 10, 40, 60]])
def test_steps_that_do_not_increase_are_refused(tmp_path, steps):
    points = write_trajectory(tmp_path, STEPS, walk(STEPS, drift=1e-3, noise=0))
    moved = [Point(step, point.folder) for step, point in zip(steps, points, strict=True)]
    refused(moved, "steps_not_increasing", "step-25", "step-10")


def test_a_jump_at_another_step_is_refused(tmp_path):
    points = write_trajectory(tmp_path, STEPS, walk(STEPS, drift=1e-3, noise=0))
    refused([*points, Point(70, points[-1].folder, jump=True)], "steps_not_increasing", "jump")


@pytest.mark.parametrize("change", ["missing", "extra", "shape", "dtype"])
def test_different_tensors_are_refused(tmp_path, change):
    weights = walk(STEPS, drift=1e-3, noise=0)
    other = dict(weights[2])
    match change:
        case "missing":
            del other["model.norm.weight"]
        case "extra":
            other["model.extra.weight"] = np.zeros(3)
        case "shape":
            other["model.norm.weight"] = np.zeros(17)
    points = write_trajectory(tmp_path, [0, 10], weights[:2])
    dtype = torch.bfloat16 if change == "dtype" else torch.float32
    points.append(Point(25, write_folder(tmp_path / "odd", other, dtype=dtype)))
    points += write_trajectory(tmp_path, [40, 60], weights[3:])
    refused(points, "different_tensors", "odd/model.safetensors" if change != "missing" else "odd")


def test_a_number_that_is_not_finite_is_refused(tmp_path):
    weights = walk(STEPS, drift=1e-3, noise=0)
    weights[3]["model.norm.weight"] = np.full(16, np.nan)
    refused(write_trajectory(tmp_path, STEPS, weights), "not_finite", "step-40/model.safetensors", "model.norm.weight")


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from the kernel")
def test_a_large_tensor_is_read_in_bounded_memory(tmp_path):
    """One tensor of 12 million weights (48 MB a file, 384 MB over 8 files) adds less than 64 MiB to the process."""
    steps = [0, 1, 2, 3, 4, 5, 6, 7]
    base = np.random.default_rng(0).standard_normal((3000, 4000)).astype(np.float32)
    for step in steps:
        write_folder(tmp_path / f"step-{step}", {"model.embed_tokens.weight": base + np.float32(step)})
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from core.dynamics.linearity import weight_linearity\n"
        "from core.dynamics.trajectory import Jumped, Point, Trajectory\n"
        "points = [Point(step, Path(sys.argv[1]) / f'step-{step}') for step in range(8)]\n"
        # Not ru_maxrss: it includes what the parent process had when it started this one.
        "def peak():\n"
        "    return next(int(s.split()[1]) for s in open('/proc/self/status') if s.startswith('VmHWM:'))\n"
        "before = peak()\n"
        "with Trajectory.open(points) as trajectory:\n"
        "    result = weight_linearity(trajectory, seed=0)\n"
        "assert result['trajectory']['kept'] == 12_000_000\n"
        "print(peak() - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True, timeout=200
    )
    assert 1024 < int(done.stdout) < 64 * 1024, f"{int(done.stdout) / 1024:.0f} MiB"
