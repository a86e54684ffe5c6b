"""Peak memory and time of one piece of work on a CUDA card, and the facts that a figure needs beside it."""

import datetime
import gc
import platform
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

GIB = 2**30


@dataclass(frozen=True)
class Figure:
    """Peak of allocated and of reserved memory (GiB), median and spread of the time (s)."""

    peak_gib: float
    reserved_gib: float
    median_s: float
    fastest_s: float
    slowest_s: float
    runs: int


def environment() -> dict[str, str]:
    """Card, versions and date of a run."""
    import transformers
    import triton

    return {
        "label": f"{torch.cuda.get_device_name().removeprefix('NVIDIA ')} measured",
        "card": torch.cuda.get_device_name(),
        "memory_gib": f"{torch.cuda.get_device_properties(0).total_memory / GIB:.1f}",
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "transformers": transformers.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def fresh() -> None:
    """Give cached memory back and start a new peak."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def peak(work: Callable[[], object]) -> tuple[float, float]:
    """Allocated and reserved peak (GiB) of one call, from an emptied allocator."""
    fresh()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() / GIB, torch.cuda.max_memory_reserved() / GIB


def seconds(work: Callable[[], object]) -> float:
    """Time of one call between two events of the card."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def side_by_side(works: Mapping[str, Callable[[], object]], runs: int = 5) -> dict[str, Figure]:
    """Measure all of ``works``: each once as warm-up, once for its peak, then timed in turns.

    Turns, because a card under load changes its clock: a variant timed after all others would run on another card.
    """
    peaks = {}
    for name, work in works.items():
        work()
        peaks[name] = peak(work)
    fresh()
    for work in works.values():  # the allocator's blocks, so that no timed run waits for cudaMalloc
        work()
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(runs):
        for name, work in works.items():
            times[name].append(seconds(work))
    return {
        name: Figure(*peaks[name], statistics.median(values), min(values), max(values), runs)
        for name, values in times.items()
    }


def table(rows: Mapping[str, Mapping[str, Figure]]) -> str:
    """Markdown: one line per row, one column per variant, ``GiB / s``."""
    columns = list(dict.fromkeys(name for figures in rows.values() for name in figures))
    lines = ["| tokens | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for row, figures in rows.items():
        cells = [f"{f.peak_gib:.2f} / {f.median_s:.3f}" if (f := figures.get(name)) else "" for name in columns]
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
