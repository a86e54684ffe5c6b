"""400 steps of GRPO on SmolLM2-135M at 256 samples a step: does a run survive, or stop with a reason and good weights?

A plain bf16-autocast GRPO loop in this setting (learning rates 5e-6 and 2e-5) was reported to die around step 130 with
probabilities that are not numbers. This bench runs it through the trainer that users run: bf16 forward, fp32 masters, the
store, checkpoints. Items are sums of two numbers below 100, written here; nothing of the outcome is known beforehand.

    python -m bench.robustness --model FOLDER --home FOLDER --lr 5e-6 --minutes 9

A run ends its attempt after ``--minutes`` with a checkpoint and continues where it stood when called again with the same
``--home``. Every call writes ``robustness-LR.json`` with the curves so far and prints the verdict. Two learning rates can run
as two processes with two homes.
"""

import argparse
import json
import logging
import math
import random
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.measure import environment
from bench.runs import Home, open_home, reference
from core.jobs import Outcome, RunContext, UserError
from core.recipes import family_hash, load_recipe, parse_recipe, recipe_hash, resolved
from core.store import checkpoints, events, queue, runs
from core.store.states import RunState
from core.train.loop import run_training

ITEMS = "sums.jsonl"
CURVES = (
    "loss",
    "entropy",
    "grad_norm",
    "reward",
    "kl",
    "updates/skipped",
    "sampling/logp_gap",
    "sampling/mismatch_kl_k3",
    "completions/mean_length",
    "weights/changed_share",
    "step_time",
    "memory/peak_gib",
)


@dataclass
class Budget:
    """Asks a run to drain once its minutes are over."""

    minutes: float
    began: float = field(default_factory=time.monotonic)

    @property
    def requested(self) -> str | None:
        return "drain" if time.monotonic() - self.began > 60 * self.minutes else None


def write_items(folder: Path, count: int = 2000) -> None:
    """Sums of two numbers below 100, each pair once."""
    draws = random.Random(0)
    pairs = draws.sample([(a, b) for a in range(100) for b in range(100)], count)
    lines = [{"id": f"sum-{a}-{b}", "prompt": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in pairs]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ITEMS).write_text("".join(json.dumps(line) + "\n" for line in lines))


def recipe_of(options: argparse.Namespace) -> dict[str, Any]:
    """The reported setting: full parameters, bf16, 256 samples a step, no KL."""
    return {
        "kind": "train",
        "model": reference(options.model),
        "data": {"dataset": f"file:{ITEMS}", "holdout": 0},
        # The model seldom boxes an answer by itself; begun like this, it gets some right and has something to learn from.
        "prompt": {"prefill": "The answer is"},
        "algorithm": "grpo",
        "max_steps": options.steps,
        "prompts_per_step": options.prompts,
        "num_generations": options.samples // options.prompts,
        "max_prompt_length": 128,
        "max_completion_length": options.length,
        "learning_rate": options.lr,
        "engine": options.engine,
        "device": {"kind": options.device, "memory_gib": options.memory_gib},
        "dtype": "bfloat16" if options.device == "cuda" else "float32",
        "save": {"every": options.save_every, "keep": 2},
        "seed": options.seed,
        "max_attempts": 100,
    }


def claim(home: Home, recipe: dict[str, Any]) -> tuple[str, queue.Claim]:
    """The run of an earlier call, or a new one, claimed as a worker would."""
    with home.db.write() as session:
        known = home.settings.home / "run-id"
        if known.exists():
            run_id = known.read_text()
            if runs.get(session, run_id).state == RunState.RUNNING:
                raise RuntimeError(f"run {run_id} is being worked on, or its process was killed: begin a new --home")
        else:
            parsed = parse_recipe(recipe, known_models=None)
            run_id = runs.create(
                session,
                recipe=resolved(parsed),
                submitted=recipe,
                recipe_hash=recipe_hash(parsed),
                family_hash=family_hash(parsed),
                model=recipe["model"],
                name="robustness",
                kind="train",
                priority=0,
                tags=[],
                after=[],
                max_attempts=100,
            ).id
            known.write_text(run_id)
    with home.db.write() as session:
        claimed = queue.claim(session, worker_id="0" * 12, device=home.device, ttl=24 * 3600.0)
    if claimed is None:
        raise RuntimeError(f"run {run_id} is over or cannot be claimed for {home.device}")
    return run_id, claimed


def attempt(home: Home, run_id: str, claimed: queue.Claim, minutes: float) -> Outcome:
    """Work on the run until it ends or the minutes are over, and record how the attempt ended."""
    with home.db.read() as session:
        recipe = load_recipe(runs.get(session, run_id).recipe)
    context = RunContext(
        run_id=run_id,
        attempt=claimed.attempt,
        fence=claimed.fence,
        recipe=recipe,
        settings=home.settings,
        db=home.db,
        control=Budget(minutes),  # type: ignore[arg-type]
        device=home.device,
        log=logging.getLogger("bench"),
    )
    try:
        outcome = run_training(context)
    except UserError as problem:
        error = {"category": "user", "code": problem.code, "message": problem.message}
        outcome = Outcome("failed", problem.message, error=error)
    with home.db.fenced(claimed.fence) as session:
        if outcome.state == "interrupted":
            queue.interrupt(session, claimed.fence, reason=outcome.reason, counted=False)
        else:
            queue.finish(session, claimed.fence, state=RunState(outcome.state), reason=outcome.reason)
    return outcome


def report(home: Home, run_id: str, outcome: Outcome, options: argparse.Namespace, took: float) -> dict[str, Any]:
    """Everything measured so far, and the verdict on it."""
    curves = {key: values for key, values in home.curves(run_id).items() if key in CURVES}
    with home.db.read() as session:
        step = runs.get(session, run_id).step or 0
        good = checkpoints.latest(session, run_id)
        skipped = [one.payload for one in events.page(session, run_id, limit=200).items if one.type == "update_skipped"]
    strange = {key: sum(not math.isfinite(value) for value in values) for key, values in curves.items()}
    last_good = None if good is None else good.step
    if outcome.state == "succeeded":
        verdict = f"survived to {step} of {options.steps} steps"
    elif outcome.state == "interrupted":
        verdict = f"alive at step {step} of {options.steps}; call again with the same --home to go on"
    else:
        verdict = f"stopped at step {step}: {outcome.reason}; last good checkpoint: step {last_good}"
    return {
        "environment": environment() if options.device == "cuda" else {"label": "CPU, no measurement"},
        "recipe": recipe_of(options),
        "state": outcome.state,
        "reason": outcome.reason,
        "verdict": verdict,
        "step": step,
        "last_good_checkpoint": last_good,
        "updates_skipped": skipped,
        "not_finite": {key: count for key, count in strange.items() if count},
        "seconds_of_this_call": round(took, 1),
        "curves": curves,
    }


def show(found: dict[str, Any]) -> None:
    """Print every twentieth step and the verdict."""
    curves = found["curves"]
    columns = [
        key for key in ("reward", "loss", "entropy", "grad_norm", "sampling/logp_gap", "step_time") if key in curves
    ]
    print("step  " + "  ".join(f"{key:>18}" for key in columns))
    steps = len(curves.get("loss", []))
    for place in sorted({*range(0, steps, 20), steps - 1} - {-1}):
        print(f"{place + 1:4d}  " + "  ".join(f"{curves[key][place]:18.6g}" for key in columns))
    print(f"updates skipped: {len(found['updates_skipped'])}; not finite: {found['not_finite'] or 'none'}")
    print(
        f"lr {found['recipe']['learning_rate']:g}: {found['verdict']} ({found['seconds_of_this_call']} s in this call)"
    )


def main() -> None:
    """Parse the options, work on the run, write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="model folder, two levels deep: .../ORG/NAME")
    parser.add_argument("--home", type=Path, required=True, help="where the run lives; the same one continues it")
    parser.add_argument("--lr", type=float, default=5e-6)
    parser.add_argument("--minutes", type=float, default=9.0, help="of this call")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--length", type=int, default=128, help="longest completion, in tokens")
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument("--engine", choices=("auto", "transformers", "vllm"), default="auto")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--memory-gib", type=float, default=24.0, help="budget of the memory plan")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    began = time.monotonic()
    write_items(options.home / "items")
    home = open_home(options.home, options.model, options.home / "items")
    run_id, claimed = claim(home, recipe_of(options))
    try:
        outcome = attempt(home, run_id, claimed, options.minutes)
    except Exception as problem:  # noqa: BLE001 - what went wrong is the result
        traceback.print_exc()
        outcome = Outcome("failed", f"{type(problem).__name__}: {problem}")
    found = report(home, run_id, outcome, options, time.monotonic() - began)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"robustness-{options.lr:g}.json").write_text(json.dumps(found, indent=1) + "\n")
    show(found)


if __name__ == "__main__":
    main()
