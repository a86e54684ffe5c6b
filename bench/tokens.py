"""Token scoring on a card: log-probs of long probes, ours against one sample at a time with all logits.

Random weights of Qwen2.5-1.5B's shape, in bfloat16. ``full logits`` is what a plain script does: one sequence, all logits in
float32, one log-softmax. Ours is the scoring of ``token_linearity``, lean layers included; ``body only`` is ours without the
head, below which it cannot go, and ``library body`` and ``library body, cache`` are the library's layers on the same batches,
without a cache and with one (which lays keys out otherwise). Every variant runs twice before it is timed. ``ratio`` is full
logits over ours, ``possible ratio`` full logits over our body only. Memory is capped by torch to ``--gib``, so that a variant
that needs more fails there as it would on such a card. Each section's failure is printed and leaves the others.

    python -m bench.tokens [--gib 24] [--json bench/results/tokens.json]
"""

import argparse
import json
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from bench.measure import environment, fresh, side_by_side
from bench.workload import build_model
from core.dynamics.probes import ProbeSequence
from core.dynamics.scoring import probe_batches, run_body, score_tokens
from core.rl.lean import make_lean

TARGET_RATIO = 3.0


def probes(sequences: int, prompt: int, completion: int, vocabulary: int) -> list[ProbeSequence]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, vocabulary, (sequences, prompt + completion), generator=generator).tolist()
    return [ProbeSequence(f"{at}", 0, tuple(row[:prompt]), tuple(row[prompt:])) for at, row in enumerate(ids)]


@torch.no_grad()
def full_logits(model: PreTrainedModel, wanted: list[ProbeSequence]) -> Tensor:
    """One sample at a time, all its logits."""
    found = []
    for one in wanted:
        ids_1S = torch.tensor([one.prompt_ids + one.completion_ids], device="cuda")
        logits_TV = model(input_ids=ids_1S).logits[0].float()
        logp_TV = logits_TV.log_softmax(-1)
        rows = torch.arange(len(one.prompt_ids) - 1, ids_1S.shape[1] - 1, device="cuda")
        found.append(logp_TV[rows, ids_1S[0, len(one.prompt_ids) :]])
    return torch.cat(found).cpu()


def ours(model: PreTrainedModel, wanted: list[ProbeSequence]) -> Tensor:
    count = sum(len(one.completion_ids) for one in wanted)
    return score_tokens(model, probe_batches(wanted, torch.device("cuda")), count)[0]


@torch.no_grad()
def library_body(model: PreTrainedModel, wanted: list[ProbeSequence], *, use_cache: bool) -> None:
    """The library's own layers on our batches."""
    for batch in probe_batches(wanted, torch.device("cuda")):
        model.model(input_ids=batch.input_ids_BS, use_cache=use_cache)


Work = Callable[[], Tensor | None]


def eager(model: PreTrainedModel, work: Work) -> Work:
    """``work`` with the library's own layers."""

    def run() -> Tensor | None:
        for layer in model.model.layers:
            vars(layer).pop("forward", None)
        return work()

    return run


def lean(model: PreTrainedModel, work: Work) -> Work:
    """``work`` with the layers that scoring runs."""

    def run() -> Tensor | None:
        if "forward" not in vars(model.model.layers[0]):
            make_lean(model)
        return work()

    return run


def section(name: str, work: Callable[[], dict[str, object]]) -> dict[str, object]:
    began = time.monotonic()
    try:
        found = work()
    except Exception as problem:  # noqa: BLE001 - a failed section must not lose the others
        traceback.print_exc()
        found = {"failed": f"{type(problem).__name__}: {problem}"}
    fresh()
    found["section_s"] = round(time.monotonic() - began, 1)
    print(name, json.dumps(found), flush=True)
    return found


def compare(model: PreTrainedModel, wanted: list[ProbeSequence], runs: int) -> dict[str, object]:
    """Time all variants; where all logits do not fit the cap, say so and time the others."""
    device = torch.device("cuda")
    works: dict[str, Work] = {
        "ours": lean(model, lambda: ours(model, wanted)),
        "body only": lean(model, lambda: run_body(model, probe_batches(wanted, device))),
        "library body": eager(model, lambda: library_body(model, wanted, use_cache=False)),
        "library body, cache": eager(model, lambda: library_body(model, wanted, use_cache=True)),
    }
    try:
        plain = eager(model, lambda: full_logits(model, wanted))
        reference = plain()
        works["full logits"] = plain
        gap: float | None = float((reference - works["ours"]()).abs().max())
    except torch.OutOfMemoryError:
        gap = None
        fresh()
    figures = side_by_side(works, runs)
    tokens = sum(len(one.prompt_ids) + len(one.completion_ids) for one in wanted)
    row: dict[str, object] = {name: asdict(figure) for name, figure in figures.items()}
    row |= {"tokens": tokens, "tokens_per_s": round(tokens / figures["ours"].median_s), "largest_difference": gap}
    if "full logits" in figures:
        full = figures["full logits"].median_s
        row |= {
            "ratio": round(full / figures["ours"].median_s, 2),
            "possible ratio": round(full / figures["body only"].median_s, 2),
            "wanted_ratio": TARGET_RATIO,
        }
    else:
        row["full logits"] = "does not fit the cap"
    return row


def print_table(rows: dict[str, dict[str, object]]) -> None:
    variants = ("full logits", "ours", "body only", "library body", "library body, cache")
    columns = ["probes", *(f"{name} s (GiB)" for name in variants), "ratio", "possible ratio"]
    print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|")
    for name, row in rows.items():
        figures = [row.get(variant, "") for variant in variants]
        cells = [
            f"{one['median_s']:.3f} ({one['peak_gib']:.1f})" if isinstance(one, dict) else str(one) for one in figures
        ]
        print("| " + " | ".join([name, *cells, str(row.get("ratio", "")), str(row.get("possible ratio", ""))]) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=24.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    began = time.monotonic()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, asked.gib * 2**30 / total))
    model = build_model(gradients=False).eval()
    words = model.config.vocab_size
    # 16k tokens each time: as one long trace, and as the short ones that most probes are.
    cases = {"1 x 16384": (1, 384, 16_000), "16 x 1024": (16, 128, 896), "64 x 256": (64, 64, 192)}
    rows = {
        name: section(name, lambda shape=shape: compare(model, probes(*shape, words), asked.runs))
        for name, shape in cases.items()
    }
    print_table(rows)
    print(f"total {time.monotonic() - began:.0f} s")
    if asked.json:
        asked.json.write_text(
            json.dumps({"environment": environment(), "cap_gib": asked.gib, "cases": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
