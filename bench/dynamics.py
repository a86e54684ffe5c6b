"""How fast all weights of a trajectory are measured: against a cold read of the files, and against sampling 0.1 % in Python.

Writes checkpoints with the shapes of a 135M Llama (``--layers`` and ``--vocabulary`` make it smaller) into a temporary folder,
then runs each method in a process of its own with the page cache dropped: ``read`` only reads the files; ``sampled`` is the
method that the paper describes (load every checkpoint, draw 0.1 % of the elements, fit each in a Python loop); ``all`` is
``weight_linearity`` over every element, from opening the files to the whole result: Gram matrix, relative changes, rank-1
shares, nulls and band included, hashes not (these folders have no manifest). ``read`` and ``all`` take turns (``--rounds``),
since a machine that others use is not equally fast at all times; ratios are of their medians. ``from_disk_mb`` says how much
came from the disk, so that a read that was not cold shows. It prints rows, writes JSON, and asserts nothing.

    python -m bench.dynamics [--checkpoints 14] [--layers 30] [--vocabulary 49152] [--json bench/results/dynamics.json]
"""

import argparse
import datetime
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from safetensors.torch import load_file
from scipy.stats import linregress

from core.dynamics.linearity import weight_linearity
from core.dynamics.trajectory import Point, Trajectory

HIDDEN, INNER, KEYS = 576, 1536, 192
SHARE = 0.001
METHODS = ("read", "sampled", "all")


def shapes(layers: int, vocabulary: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the weights, the tied head left out."""
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabulary, HIDDEN),
        "model.norm.weight": (HIDDEN,),
    }
    for layer in range(layers):
        stem = f"model.layers.{layer}."
        found |= {stem + f"self_attn.{name}_proj.weight": (HIDDEN, HIDDEN) for name in ("q", "o")}
        found |= {stem + f"self_attn.{name}_proj.weight": (KEYS, HIDDEN) for name in ("k", "v")}
        found |= {stem + f"mlp.{name}_proj.weight": (INNER, HIDDEN) for name in ("gate", "up")}
        found |= {stem + "mlp.down_proj.weight": (HIDDEN, INNER)}
        found |= {stem + f"{name}_layernorm.weight": (HIDDEN,) for name in ("input", "post_attention")}
    return found


def write(folder: Path, wanted: dict[str, tuple[int, ...]], checkpoints: int) -> None:
    """Write a random walk with a little drift as checkpoint folders step-0, step-20, ..."""
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal(shape, dtype=np.float32) * np.float32(0.02) for name, shape in wanted.items()}
    for number in range(checkpoints):
        step = folder / f"step-{20 * number}"
        step.mkdir()
        save_file(weights, step / "model.safetensors")
        for name, shape in wanted.items():
            weights[name] += rng.standard_normal(shape, dtype=np.float32) * np.float32(1e-5) + np.float32(2e-6)


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/model.safetensors"), key=lambda path: int(path.parent.name.removeprefix("step-")))


def drop_cache(paths: list[Path]) -> None:
    """Ask the kernel to forget the files' pages, so that the next read comes from the disk."""
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def peak_kib() -> int:
    """Peak resident memory of this process alone (``ru_maxrss`` would include what the parent had when it started this one)."""
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")))


def read(paths: list[Path]) -> dict[str, float]:
    """Read every byte."""
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.read(1 << 20):
                pass
    return {"elements": sum(path.stat().st_size // 4 for path in paths[:1])}


def sampled(paths: list[Path]) -> dict[str, float]:
    """Load all checkpoints, draw 0.1 % of each tensor's elements, and fit a line to each element in a loop."""
    loaded = [load_file(path) for path in paths]
    steps = [int(path.parent.name.removeprefix("step-")) for path in paths]
    rng = np.random.default_rng(0)
    r2: list[float] = []
    for name, first in loaded[0].items():
        count = max(1, int(first.numel() * SHARE))
        for index in rng.choice(first.numel(), count, replace=False):
            values = [checkpoint[name].reshape(-1)[index].item() for checkpoint in loaded]
            if max(values) > min(values):
                r2.append(float(linregress(steps, values).rvalue) ** 2)
    return {"elements": len(r2), "share_above": float(np.mean(np.array(r2) > 0.7))}


def measure_all(paths: list[Path]) -> dict[str, float]:
    """Measure every element as the service does."""
    points = [Point(int(path.parent.name.removeprefix("step-")), path.parent) for path in paths]
    with Trajectory.open(points) as trajectory:
        result = weight_linearity(trajectory, seed=0)
    return {"elements": result["trajectory"]["measured"], "share_above": result["r2"]["share_above"]}


def timed(method: str, folder: Path) -> dict[str, float | str]:
    """Run one method in this process, from a cold cache."""
    paths = files(folder)
    drop_cache(paths)
    before = peak_kib()
    blocks = resource.getrusage(resource.RUSAGE_SELF).ru_inblock
    start, cpu = time.perf_counter(), time.process_time()
    facts = {"read": read, "sampled": sampled, "all": measure_all}[method](paths)
    wall = time.perf_counter() - start
    size = sum(path.stat().st_size for path in paths)
    return {
        "method": method,
        "wall_s": round(wall, 2),
        "cpu_s": round(time.process_time() - cpu, 2),
        "mb_per_s": round(size / wall / 1e6, 1),
        "from_disk_mb": round((resource.getrusage(resource.RUSAGE_SELF).ru_inblock - blocks) * 512 / 1e6),
        "load": round(os.getloadavg()[0], 2),
        "added_peak_mib": round((peak_kib() - before) / 1024, 1),
        **facts,
    }


def run_methods(folder: str, rounds: int) -> list[dict[str, object]]:
    """Run every method in a process of its own; one that fails is a row that says so."""
    rows: list[dict[str, object]] = []
    for method in [*("read", "all") * rounds, "sampled"]:
        command = [sys.executable, "-m", "bench.dynamics", "--method", method, "--folder", folder]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            rows.append({"method": method, "failed": done.stderr[-2000:]})
        else:
            rows.append(json.loads(done.stdout.splitlines()[-1]))
        print(rows[-1], flush=True)
    return rows


def ratios(rows: list[dict[str, object]]) -> dict[str, float]:
    """What the methods are to each other: throughput against a cold read, time against the sampling loop, memory."""
    walls: dict[str, float] = {}
    for method in METHODS:
        times = [float(row["wall_s"]) for row in rows if row["method"] == method and "failed" not in row]
        if times:
            walls[method] = statistics.median(times)
    found: dict[str, float] = {}
    if "all" in walls and "read" in walls:
        found["throughput of all over a cold read (wanted: at least 0.5)"] = walls["read"] / walls["all"]
    if "all" in walls and "sampled" in walls:
        found["time of all over that of 0.1 % in Python (wanted: below 1)"] = walls["all"] / walls["sampled"]
    if "all" in walls:
        found["memory added by all, MiB (wanted: below 64)"] = max(
            float(row["added_peak_mib"]) for row in rows if row["method"] == "all" and "failed" not in row
        )
    return {name: round(value, 3) for name, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=int, default=14)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--vocabulary", type=int, default=49_152)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scratch", type=Path, help="where the checkpoints are written (7.5 GB by default)")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--method", choices=METHODS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.method:
        print(json.dumps(timed(asked.method, asked.folder)))
        return
    began = time.monotonic()
    wanted = shapes(asked.layers, asked.vocabulary)
    with tempfile.TemporaryDirectory(dir=asked.scratch) as temporary:
        write(Path(temporary), wanted, asked.checkpoints)
        rows = run_methods(temporary, asked.rounds)
    found = ratios(rows)
    for name, value in found.items():
        print(f"{name}: {value}")
    print(f"total {time.monotonic() - began:.0f} s")
    document = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "weights": sum(int(np.prod(shape)) for shape in wanted.values()),
        "checkpoints": asked.checkpoints,
        "processors": os.cpu_count(),
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "methods": rows,
        "ratios": found,
    }
    if asked.json:
        asked.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
