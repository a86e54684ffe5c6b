"""Decoding on the line through two checkpoints of a trained run: alphas beside the later checkpoint's temperatures.

    python -m bench.alpha_sweep --home HOME --model FOLDER --items FOLDER --out FOLDER

``HOME`` is the home of a finished train run, such as an arm of ``bench.regrounding``. One evaluation recipe asks the run's
held-out items, greedily and sampled: of every alpha, of the later checkpoint at every temperature, of the best checkpoint and
of the base. The table pairs each with the later checkpoint item by item. The best of several is too high by the choosing, so
the table shows all of them, and a claim needs items that played no part.
"""

import argparse
import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.measure import environment
from bench.runs import Home, open_home
from core.evals.comparison import paired_items
from core.store import checkpoints, evaluations, runs
from core.store.evaluations import CORRECT, NO_CLAIM

ALPHAS = (0.5, 1.0, 1.25, 1.5, 2.0, 3.0)
TEMPERATURES = (0.2, 0.4, 0.6, 0.8, 1.0)


def recipe_of(trained: str, last: int, options: argparse.Namespace) -> dict[str, Any]:
    """The sweep over a finished run from its base to its last checkpoint."""
    return {
        "kind": "eval",
        "extrapolation": {
            "a": f"run:{trained}/step-0",
            "b": f"run:{trained}/step-{last}",
            "alpha": list(ALPHAS),
            "temperatures": list(TEMPERATURES),
        },
        "against": [f"run:{trained}/best", f"run:{trained}/step-0"],
        "suites": ["holdout", {"suite": "holdout", "n": options.samples, "temperature": 1.0, "top_p": 1.0}],
        "max_prompt_length": 128,
        "max_completion_length": options.length,
        "engine": options.engine,
        "device": {"kind": options.device, "memory_gib": options.memory_gib},
        "batch_size": 1024,
        "seed": 1,
    }


def scores(session: Any, evaluation_id: str) -> dict[str, float]:
    """Share of right samples by item; samples that could not be judged are left out."""
    found = {
        item: [verdict == CORRECT for verdict in verdicts if verdict != NO_CLAIM]
        for item, verdicts in evaluations.verdicts(session, evaluation_id).items()
    }
    return {item: sum(right) / len(right) for item, right in found.items() if right}


def rows(home: Home, run_id: str, later: str) -> Iterator[dict[str, Any]]:
    """One row per evaluation, paired with the later checkpoint's in the same mode (sampled: at temperature 1)."""
    with home.db.read() as session:
        made = evaluations.list_for_run(session, run_id)
        found = {row.id: scores(session, row.id) for row in made}
    own = {
        row.mode: row.id
        for row in made
        if row.model_ref == later and (row.mode == "greedy" or row.params["temperature"] == 1.0)
    }
    for row in made:
        reference = found[own[row.mode]]
        shared = [item for item in found[row.id] if item in reference]
        pair = paired_items({i: reference[i] for i in shared}, {i: found[row.id][i] for i in shared})
        yield {
            "model": row.model_ref,
            "mode": row.mode,
            "temperature": row.params["temperature"],
            "items": len(shared),
            "samples": row.samples,
            "accuracy": row.accuracy,
            "lost": pair.lost,
            "gained": pair.gained,
            "delta": pair.delta,
            "ci": list(pair.ci),
            "p_value": pair.p_value,
            "mean_tokens": row.mean_tokens,
            "engine": row.engine.get("engine"),
        }


def table(found: list[dict[str, Any]]) -> str:
    """Accuracy of every arm and its paired difference from the later checkpoint."""
    lines = [
        "| model | mode | temperature | accuracy | lost | gained | against the later | 95 % interval | p |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in found:
        low, high = row["ci"]
        interval = f"{100 * low:+.1f} to {100 * high:+.1f}"
        lines.append(
            f"| {row['model']} | {row['mode']} | {row['temperature']:g} | {row['accuracy']:.3f} | {row['lost']:g} | "
            f"{row['gained']:g} | {100 * row['delta']:+.1f} points | {interval} | {row['p_value']:.3g} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Evaluate, pair, print, write ``alpha_sweep.json`` and ``.md``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, required=True, help="home of a finished train run")
    parser.add_argument("--model", type=Path, required=True, help="folder of the model that the run began from")
    parser.add_argument("--items", type=Path, required=True, help="folder that holds the run's items file")
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--engine", choices=("auto", "transformers", "vllm"), default="auto")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--memory-gib", type=float, default=22.0)
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    began = time.monotonic()
    home = open_home(options.home.resolve(), options.model.resolve(), options.items.resolve())
    with home.db.read() as session:
        trained = next(run for run in runs.list_page(session, limit=50).items if run.kind == "train")
        last = checkpoints.latest(session, trained.id)
    if last is None or last.step == 0:
        raise SystemExit(f"run {trained.id} has no checkpoint beyond its base: let it finish first")
    recipe = recipe_of(trained.id, last.step, options)
    run_id, outcome = home.run(recipe)
    found = list(rows(home, run_id, recipe["extrapolation"]["b"]))
    result = {
        "environment": environment() if options.device == "cuda" else {"label": "CPU, no measurement"},
        "recipe": recipe,
        "trained_on": trained.recipe,
        "outcome": f"{outcome.state}: {outcome.reason}",
        "rows": found,
        "seconds": round(time.monotonic() - began, 1),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "alpha_sweep.json").write_text(json.dumps(result, indent=1) + "\n")
    (options.out / "alpha_sweep.md").write_text(table(found) + "\n")
    print(table(found))
    print(f"{result['outcome']}, {result['seconds']:.0f} s")


if __name__ == "__main__":
    main()
