"""Does re-grounding reach a plain run's accuracy in fewer RL steps, and in fewer GPU-seconds? Arms side by side on one card.

Run ``python -m bench.regrounding --model FOLDER --out FOLDER`` on the card's machine. A model learns sums that it half
knows; every arm trains on the same items with the same seed and is asked the same held-out items every ``--every`` steps:

- ``plain``: the run that sets the target, its held-out accuracy after ``--steps`` steps, frozen before any arm is read;
- ``reground-M-N``: M real steps, then a jump worth N, again and again;
- ``adaptive-M-A-B-C``: the same, n chosen at each jump from 0, A, B and C on validation items;
- control arms ``lr-xF`` (the learning rate times F) and ``momentum-B`` (Adam's first beta): a jump might be no more than that.

Each arm is a train run of Driftline's own in a home under ``--out``, in a process of its own; run again, the bench continues
what is unfinished. With ``--minutes`` the arms save and end in time. Seconds are the arm's own wall time with looks and
decisions (loading and starting the engine left out), while it shares the card with the other arms that are running.
"""

import argparse
import contextlib
import json
import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ARMS = "plain,reground-10-10,reground-10-20,lr-x2,momentum-0.95"
ITEMS = "sums.jsonl"
TRIES = 3


@dataclass(frozen=True)
class Setting:
    """What all arms share; written beside the results."""

    model: str
    engine: str
    device: str
    steps: int
    every: int
    prompts: int
    generations: int
    learning_rate: float
    holdout: int
    validation: int
    max_completion_length: int
    memory_gib: float
    suffix: str
    prefill: str
    seed: int


def recipe_of(arm: str, setting: Setting) -> dict[str, Any]:
    """The train recipe of one arm, by its name."""
    recipe: dict[str, Any] = {
        "kind": "train",
        "name": arm,
        "model": setting.model,
        "data": {"dataset": f"file:{ITEMS}", "holdout": setting.holdout},
        "prompt": {"suffix": setting.suffix, "prefill": setting.prefill},
        "max_steps": setting.steps,
        "prompts_per_step": setting.prompts,
        "num_generations": setting.generations,
        "max_prompt_length": 128,
        "max_completion_length": setting.max_completion_length,
        "learning_rate": setting.learning_rate,
        "engine": setting.engine,
        "device": {"kind": setting.device, "memory_gib": setting.memory_gib},
        "looks": {"every": setting.every, "base_runs": 1, "batch_size": 256},
        "save": {"every": 50, "keep": 2},
        "seed": setting.seed,
    }
    kind, *values = arm.split("-")
    match kind:
        case "plain":
            return recipe
        case "reground":
            m, n = map(int, values)
            return recipe | {"regrounding": {"m": m, "n": n}}
        case "adaptive":
            m, *candidates = map(int, values)
            block = {"m": m, "n": candidates[0], "adaptive": True, "candidates": candidates}
            return recipe | {"regrounding": block | {"validation": setting.validation}}
        case "lr":
            return recipe | {"learning_rate": setting.learning_rate * float(values[0].removeprefix("x"))}
        case "momentum":
            return recipe | {"adam_beta1": float(values[0])}
    raise SystemExit(f"{arm!r} is not an arm; see --help")


def write_items(path: Path, largest: int, seed: int) -> None:
    """Sums of two whole numbers up to ``largest``, in random order; each pair once, so that no held-out sum was trained on."""
    generator = random.Random(seed)
    pairs = [(a, b) for a in range(1, largest + 1) for b in range(1, a + 1)]
    generator.shuffle(pairs)
    lines = []
    for index, pair in enumerate(pairs):
        a, b = generator.sample(pair, 2)
        lines.append(json.dumps({"id": f"sum-{index}", "prompt": f"What is {a} + {b}?", "answer": str(a + b)}))
    path.write_text("\n".join(lines) + "\n")


class _Control:
    """Ends the run at its next safe point, with a checkpoint, once the process was asked to end."""

    requested: str | None = None


def run_arm(arm: str, setting: Setting, out: Path, model: Path, items: Path) -> None:
    """Run or continue one arm in this process."""
    from core.jobs import RunContext
    from core.recipes import family_hash, load_recipe, parse_recipe, recipe_hash, resolved
    from core.store import queue, runs
    from core.store.states import RunState
    from core.train.loop import run_training

    control = _Control()
    signal.signal(signal.SIGTERM, lambda *_: setattr(control, "requested", "drain"))
    settings, db = _home(arm, out, model, items)
    recipe = parse_recipe(recipe_of(arm, setting), known_models=[setting.model])
    device = _device(setting.device)
    with db.write() as session:
        if not runs.list_page(session, limit=1).items:
            stored = resolved(recipe)
            runs.create(
                session, recipe=stored, submitted=stored, recipe_hash=recipe_hash(recipe), family_hash=family_hash(recipe),
                model=setting.model, name=arm, kind="train", priority=0, tags=[], after=[], max_attempts=100,
            )  # fmt: skip
        run = runs.list_page(session, limit=1).items[0]
        if run.state == RunState.RUNNING:  # an attempt that died with its process
            queue.interrupt(session, _fence_of(run), reason="the bench was ended", counted=False)
    with db.write() as session:
        claim = queue.claim(session, worker_id="0" * 12, device={"kind": setting.device}, ttl=24 * 3600.0)
    if claim is None:
        return
    with db.read() as session:
        stored_recipe = runs.get(session, claim.run_id).recipe
    context = RunContext(
        run_id=claim.run_id, attempt=claim.attempt, fence=claim.fence, recipe=load_recipe(stored_recipe),
        settings=settings, db=db, control=control, device=device, log=logging.getLogger(arm),
    )  # fmt: skip
    outcome = run_training(context)
    with db.fenced(claim.fence) as session:
        if outcome.state == "interrupted":
            queue.interrupt(session, claim.fence, reason=outcome.reason, counted=False)
        else:
            queue.finish(session, claim.fence, state=RunState(outcome.state), reason=outcome.reason)
    print(f"{arm}: {outcome.state}, {outcome.reason}", flush=True)


def _device(kind: str) -> dict[str, Any]:
    """What the worker would say of the device that this process sees."""
    if kind == "cpu":
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return {"kind": "cpu", "uuid": "cpu", "name": "cpu", "driver": "", "memory_bytes": memory}
    import torch

    card = torch.cuda.get_device_properties(0)
    return {"kind": "cuda", "uuid": "", "name": card.name, "driver": "", "memory_bytes": card.total_memory}


def _fence_of(run: Any) -> Any:
    from core.store.database import Fence

    return Fence(run.id, run.attempt, run.fence)


def _home(arm: str, out: Path, model: Path, items: Path) -> tuple[Any, Any]:
    from core.settings import Settings
    from core.store.database import Database
    from core.store.migrations_api import migrate

    home = out / "homes" / arm
    home.mkdir(parents=True, exist_ok=True)
    settings = Settings(
        home=home,
        database_url=f"sqlite:///{home / 'driftline.db'}",
        broker_url="",
        models_dir=model.parent,
        data_dir=items.parent,
    )
    if model.name == settings.smollm2_dir.name and not settings.smollm2_dir.exists():
        # The name stands for the home's own copy of the small model, whatever the model folder holds.
        settings.smollm2_dir.parent.mkdir(exist_ok=True)
        settings.smollm2_dir.symlink_to(model)
    migrate(settings.database_url)
    return settings, Database(settings.database_url)


def looks_of(arm: str, out: Path, model: Path, items: Path) -> list[dict[str, float]]:
    """Step, accuracy, seconds of work and effective steps at every look of an arm so far."""
    from core.store import metrics, runs

    _, db = _home(arm, out, model, items)
    keys = ["heldout/accuracy", "time/worked_s", "regrounding/effective_steps"]
    with db.read() as session:
        found = runs.list_page(session, limit=1).items
        curves = metrics.curves(session, found[0].id, keys=keys) if found else {}
    if "heldout/accuracy" not in curves:
        return []
    by_step = {key: {p.step: p.value for p in curve.points} for key, curve in curves.items()}
    worked, effective = by_step.get("time/worked_s", {}), by_step.get("regrounding/effective_steps", {})
    return [
        {"step": step, "accuracy": value, "seconds": worked.get(step, 0.0), "effective": effective.get(step, step)}
        for step, value in sorted(by_step["heldout/accuracy"].items())
    ]


def report(arms: list[str], setting: Setting, found: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """The frozen target and where each arm first reaches it. ``factor`` is against the target's own step count."""
    plain = found.get("plain", [])
    target = plain[-1] if plain and plain[-1]["step"] == setting.steps else None
    rows: dict[str, Any] = {}
    for arm in arms:
        looks = found.get(arm, [])
        row: dict[str, Any] = {"looks": looks}
        if looks:
            row |= {
                "last_step": looks[-1]["step"],
                "last": looks[-1]["accuracy"],
                "best": max(o["accuracy"] for o in looks),
            }
        hit = next((one for one in looks if target and one["accuracy"] >= target["accuracy"]), None)
        if target and hit and hit["step"]:
            row |= {
                "reached_step": hit["step"],
                "reached_seconds": hit["seconds"],
                "reached_effective": hit["effective"],
            }
            row |= {"factor_steps": target["step"] / hit["step"], "factor_seconds": target["seconds"] / hit["seconds"]}
        rows[arm] = row
    crossing = rows.get("plain", {}).get("reached_step")
    for row in rows.values():
        if crossing and "reached_step" in row:
            row["factor_against_plains_own_first_crossing"] = crossing / row["reached_step"]
    return {"setting": asdict(setting), "target": target, "holdout": setting.holdout, "arms": rows}


def table(result: dict[str, Any]) -> str:
    """The arms, one a line."""
    target = result["target"]
    head = (
        f"target: accuracy {target['accuracy']:.3f} of plain at step {target['step']:.0f} ({target['seconds']:.0f} s)"
        if target
        else "plain has not finished, so there is no target yet"
    )
    lines = [
        head,
        f"{'arm':24} {'last':>10} {'best':>6} {'RL steps to target':>19} {'factor':>7} {'s to target':>12} {'factor':>7}",
    ]
    for arm, row in result["arms"].items():
        if "last" not in row:
            lines.append(f"{arm:24} no look yet")
            continue
        ended = f"{row['last']:.3f}@{row['last_step']:.0f}"
        if "reached_step" in row:
            steps = f"{row['reached_step']:>19.0f} {row['factor_steps']:>7.2f}"
            hit = f"{steps} {row['reached_seconds']:>12.0f} {row['factor_seconds']:>7.2f}"
        else:
            hit = f"{'not reached':>19}"
        lines.append(f"{arm:24} {ended:>10} {row['best']:>6.3f} {hit}")
    return "\n".join(lines)


def run_arms(arms: list[str], argv: list[str], args: argparse.Namespace, began: float) -> None:
    """Run the arms, so many at a time; a failed one is tried again and never takes the others with it."""
    waiting = [(arm, 1) for arm in arms]
    running: dict[str, tuple[subprocess.Popen[bytes], int]] = {}
    drained = False
    last_start = 0.0
    while waiting or running:
        late = args.minutes is not None and time.monotonic() - began > 60 * args.minutes
        if late and not drained:
            print("the time is over: arms save and end", flush=True)
            for process, _ in running.values():
                process.terminate()
            waiting, drained = [], True
        ready = time.monotonic() - last_start >= args.stagger or not last_start
        if waiting and len(running) < args.parallel and (ready or not running):
            arm, number = waiting.pop(0)
            log = (args.out / f"{arm}.log").open("ab")
            command = [sys.executable, "-m", "bench.regrounding", *argv, "--arm", arm]
            running[arm] = subprocess.Popen(command, stdout=log, stderr=log), number
            last_start = time.monotonic()
        for arm, (process, number) in list(running.items()):
            if process.poll() is None:
                continue
            del running[arm]
            print(f"[{time.monotonic() - began:5.0f} s] {arm}: exit status {process.returncode}", flush=True)
            if process.returncode and number < TRIES and not late:
                waiting.append((arm, number + 1))
        if running:
            some, _ = next(iter(running.values()))
            with contextlib.suppress(subprocess.TimeoutExpired):
                some.wait(timeout=1)


def finished(arms: list[str], found: dict[str, list[dict[str, float]]], steps: int) -> Iterator[str]:
    """The arms that took all their steps."""
    return (arm for arm in arms if found[arm] and found[arm][-1]["step"] == steps)


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.regrounding", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--model", type=Path, required=True, help="folder of the model")
    parser.add_argument("--out", type=Path, required=True, help="folder of results and of the arms' homes")
    parser.add_argument("--items", type=Path, help="JSONL of items named sums.jsonl; written when left out")
    parser.add_argument("--arms", default=ARMS)
    parser.add_argument("--engine", default="auto", choices=["auto", "transformers", "vllm"])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--every", type=int, default=5, help="steps between looks; divide --steps by it")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--generations", type=int, default=8)
    parser.add_argument("--learning-rate", type=float, default=1e-6)
    parser.add_argument("--largest", type=int, default=40, help="the largest number in the items that are written")
    parser.add_argument("--holdout", type=int, default=250)
    parser.add_argument("--validation", type=int, default=100)
    parser.add_argument("--max-completion-length", type=int, default=16)
    parser.add_argument("--suffix", default="", help="what follows every question")
    parser.add_argument(
        "--prefill", default="The answer is", help="how every answer begins, so that each can be graded"
    )
    parser.add_argument("--memory-gib", type=float, default=22, help="share of the card that one arm plans for")
    parser.add_argument("--parallel", type=int, default=6, help="arms at a time on the card")
    parser.add_argument("--stagger", type=float, default=0.0, help="seconds between the starts of arms")
    parser.add_argument("--minutes", type=float, help="end in time; run again to continue")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--arm", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main(argv: list[str]) -> None:
    began = time.monotonic()
    args = parse(argv)
    args.out = args.out.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    model, items = args.model.resolve(), (args.items or args.out / ITEMS).resolve()
    if items.name != ITEMS:
        raise SystemExit(f"the items' file must be named {ITEMS}")
    if not items.exists():
        write_items(items, args.largest, args.seed)
    setting = Setting(
        model=model.name, engine=args.engine, device=args.device, steps=args.steps, every=args.every, prompts=args.prompts,
        generations=args.generations, learning_rate=args.learning_rate, holdout=args.holdout, validation=args.validation,
        max_completion_length=args.max_completion_length, memory_gib=args.memory_gib, suffix=args.suffix,
        prefill=args.prefill, seed=args.seed,
    )  # fmt: skip
    if args.arm:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
        run_arm(args.arm, setting, args.out, model, items)
        sys.stdout.flush()
        os._exit(0)  # an engine's threads can outlive the run
    arms = args.arms.split(",")
    for arm in arms:
        recipe_of(arm, setting)
    run_arms(arms, argv, args, began)
    found = {arm: looks_of(arm, args.out, model, items) for arm in arms}
    result = report(arms, setting, found)
    result["finished"] = list(finished(arms, found, args.steps))
    result["seconds"] = round(time.monotonic() - began, 1)
    (args.out / "regrounding.json").write_text(json.dumps(result, indent=1) + "\n")
    print(table(result))
    print(f"in all {result['seconds']:.0f} s; {len(result['finished'])} of {len(arms)} arms finished")


if __name__ == "__main__":
    main(sys.argv[1:])
