"""The vLLM engine in the trainer and in the evaluation, on the machine with the card.

    python -m bench.vllm --model FOLDER --gsm8k FILE.jsonl --out FOLDER [--parts grpo,handover,plain,evaluation] [--steps 8]

Parts, each in a process of its own, so that one that fails or hangs loses itself alone:

- ``grpo``: GRPO steps on sums that the bench writes, through the real train loop with its store, rollouts by vLLM; and by
  transformers for comparison. Rollout tokens/s, update time, hand-over time, log-prob gap.
- ``handover``: sleep, hand-over and wake alone: bytes/s, memory given back, and that the new weights are those sampled from.
- ``plain``: ``vllm.LLM.generate`` on the GSM8K prompts, greedy, at most 256 new tokens.
- ``evaluation``: the same prompts and limits through an evaluation run; its generation time beside plain vLLM's.

Writes ``OUT/vllm-PART.json``, ``OUT/vllm.json`` and ``OUT/vllm.md``.
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

NEW_TOKENS = 256
PROMPT_TOKENS = 1024
SEQUENCES = 256
PART_LIMIT_S = 900


@dataclass(frozen=True)
class Case:
    """What the parts need. ``device`` and ``dtype`` go into recipes."""

    model: Path
    gsm8k: Path | None
    out: Path
    steps: int
    prompts: int
    limit: int | None

    @property
    def cuda(self) -> bool:
        import torch

        return torch.cuda.is_available()

    @property
    def device(self) -> dict[str, Any]:
        return {"kind": "cuda", "memory_gib": 24} if self.cuda else {"kind": "cpu", "memory_gib": 6}

    @property
    def dtype(self) -> str:
        return "bfloat16" if self.cuda else "float32"


def grpo(case: Case) -> dict[str, Any]:
    """GRPO steps with rollouts by each engine; the first step, which warms everything up, is left out of the figures."""
    return {engine: _steps(case, engine) for engine in ("vllm", "transformers")}


def _steps(case: Case, engine: str) -> dict[str, Any]:
    from bench.runs import open_home, reference

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_sums(folder / "sums.jsonl", 2048)
        home = open_home(folder, case.model, folder)
        began = time.monotonic()
        run_id, outcome = home.run(
            {
                "kind": "train",
                "model": reference(case.model),
                "data": {"dataset": "file:sums.jsonl"},
                "prompt": {"suffix": " Answer with the number alone.", "system": ""},
                "max_steps": case.steps,
                "prompts_per_step": case.prompts,
                "num_generations": 8,
                "max_prompt_length": 128,
                "max_completion_length": 64,
                "learning_rate": 1e-5,
                "engine": engine,
                "dtype": case.dtype,
                "device": case.device,
                "save": {"every": case.steps},
            }
        )
        wall = time.monotonic() - began
        curves = home.curves(run_id)
    tokens = [rate * took for rate, took in zip(curves["tokens_per_s"], curves["step_time"], strict=True)]
    rates = [count / took for count, took in zip(tokens, curves["time/rollout"], strict=True)]
    later = slice(1, None) if case.steps > 1 else slice(None)
    return {
        "outcome": f"{outcome.state}: {outcome.reason}",
        "wall_s": wall,
        "samples_per_step": case.prompts * 8,
        "tokens_per_step": median(tokens[later]),
        "rollout_tokens_per_s": median(rates[later]),
        **{f"{part}_s": median(curves[f"time/{part}"][later]) for part in ("rollout", "grading", "update", "handover")},
        "step_s": median(curves["step_time"][later]),
        "logp_gap": median(curves["sampling/logp_gap"][later]),
        "logp_gap_last": curves["sampling/logp_gap"][-1],
        "peak_gib": curves["memory/peak_gib"][-1],
        "curves": {key: curves[key] for key in ("reward", "step_time", "sampling/logp_gap", "weights/changed_share")},
    }


def _write_sums(path: Path, count: int) -> None:
    numbers = random.Random(0)
    pairs = [(numbers.randint(0, 60), numbers.randint(0, 60)) for _ in range(count)]
    lines = [
        json.dumps(
            {
                "id": f"sum-{place}",
                "prompt": f"What is {a} + {b}? (item {place})",
                "answer": str(a + b),
                "source": "bench",
            }
        )
        for place, (a, b) in enumerate(pairs)
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def handover(case: Case) -> dict[str, Any]:
    """Sleep, hand over, wake; then greedy samples of perturbed weights beside transformers' of the same ones."""
    import torch

    from core.engines.base import Request, SamplingParams, StaleWeightsError
    from core.engines.models import load_model, load_tokenizer, named_weights
    from core.engines.opening import Sizes, open_live
    from core.engines.transformers_engine import TransformersEngine

    device = "cuda" if case.cuda else "cpu"
    model = load_model(case.model, getattr(torch, case.dtype), device)
    size = sum(tensor.numel() * tensor.element_size() for tensor in named_weights(model).values())
    began = time.monotonic()
    engine = open_live("vllm", model, load_tokenizer(case.model), case.model, Sizes(512, 64, 65_536, 2**30))
    start = time.monotonic() - began
    requests = [Request((1, 4093, 198, 100 + place, 200 + place)) for place in range(32)]
    params = SamplingParams(temperature=0, max_tokens=16)
    before = engine.generate(requests, params)
    slept, handed, freed = [], [], []
    for _ in range(10 if case.cuda else 2):
        free = torch.cuda.mem_get_info()[0] if case.cuda else 0
        began = time.monotonic()
        engine.sleep()
        slept.append(time.monotonic() - began)
        freed.append(((torch.cuda.mem_get_info()[0] if case.cuda else 0) - free) / 2**30)
        began = time.monotonic()
        engine.update_weights()
        handed.append(time.monotonic() - began)
    same = [done.token_ids for done in engine.generate(requests, params)] == [done.token_ids for done in before]
    with torch.no_grad():
        generator = torch.Generator().manual_seed(1)
        for tensor in named_weights(model).values():
            noise = torch.randn(tensor.shape, generator=generator).to(tensor)
            tensor.add_(noise * tensor.abs().mean() * 0.2)
    try:
        engine.generate(requests, params)
        refused = False
    except StaleWeightsError:
        refused = True
    engine.update_weights()
    after = engine.generate(requests, params)
    expected = TransformersEngine(model).generate(requests, params)
    gaps = [
        abs(a - b)
        for one, other in zip(after, expected, strict=True)
        if one.token_ids == other.token_ids
        for a, b in zip(one.logprobs, other.logprobs, strict=True)
    ]
    found = {
        "settings": engine.settings(),
        "start_s": start,
        "weights_bytes": size,
        "sleep_s": median(slept),
        "handover_s": median(handed),
        "bytes_per_s": size / median(handed),
        "freed_gib": median(freed),
        "unchanged_weights_same_samples": same,
        "stale_weights_refused": refused,
        "samples_changed": sum(a.token_ids != b.token_ids for a, b in zip(after, before, strict=True)),
        "samples_equal_to_transformers": sum(a.token_ids == b.token_ids for a, b in zip(after, expected, strict=True)),
        "samples": len(after),
        "largest_logp_gap_on_equal_samples": max(gaps, default=None),
    }
    engine.close()
    return found


def _prompts(case: Case) -> tuple[list[tuple[int, ...]], tuple[int, ...]]:
    """The GSM8K prompts as the evaluation renders them, and the tokens that end a completion."""
    from core.engines.models import load_tokenizer
    from core.engines.opening import folder_stop_token_ids
    from core.evals.rendering import Renderer
    from core.recipes.base import Prompt
    from core.tasks.sources import read_items

    tokenizer = load_tokenizer(case.model)
    render = Renderer(tokenizer, Prompt())
    items = list(read_items(_items(case), name="gsm8k"))[: case.limit]
    return [render(item).token_ids for item in items], folder_stop_token_ids(case.model, tokenizer)


def _items(case: Case) -> Path:
    if case.gsm8k is None:
        raise SystemExit("--gsm8k FILE.jsonl is needed for plain and evaluation")
    return case.gsm8k


def plain(case: Case) -> dict[str, Any]:
    """vLLM as anybody would call it: one ``LLM``, one ``generate`` with all prompts; twice, the second one warm."""
    import vllm

    prompts, stops = _prompts(case)
    extra = {} if case.cuda else {"enforce_eager": True, "kv_cache_memory_bytes": 2**30}
    began = time.monotonic()
    llm = vllm.LLM(
        model=str(case.model),
        dtype=case.dtype,
        max_model_len=PROMPT_TOKENS + NEW_TOKENS,
        max_num_seqs=SEQUENCES,
        **({"gpu_memory_utilization": 0.5} if case.cuda else {}),
        **extra,
    )
    start = time.monotonic() - began
    params = vllm.SamplingParams(temperature=0, max_tokens=NEW_TOKENS, stop_token_ids=list(stops))
    times, tokens = [], 0
    for _ in range(2):
        began = time.monotonic()
        outputs = llm.generate([{"prompt_token_ids": list(ids)} for ids in prompts], params)
        times.append(time.monotonic() - began)
        tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
        if not llm.reset_prefix_cache():
            raise RuntimeError("the prefix cache was not dropped, so the second time would be too good")
    return {
        "vllm": vllm.__version__,
        "items": len(prompts),
        "start_s": start,
        "generation_s": times,
        "tokens": tokens,
        "tokens_per_s": tokens / min(times),
    }


def evaluation(case: Case) -> dict[str, Any]:
    """The same items through an evaluation run; every call of the engine is timed."""
    from bench.runs import open_home, reference
    from core.engines.vllm_engine import VllmEngine
    from core.store import evaluations

    calls: list[tuple[float, int]] = []
    generate = VllmEngine.generate

    def timed(self: VllmEngine, requests: Any, params: Any, **more: Any) -> Any:
        began = time.monotonic()
        done = generate(self, requests, params, **more)
        calls.append((time.monotonic() - began, sum(len(one.token_ids) for one in done)))
        return done

    VllmEngine.generate = timed  # type: ignore[method-assign]
    count = len(_prompts(case)[0])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lines = _items(case).read_text(encoding="utf-8").splitlines(keepends=True)
        (folder / "gsm8k.jsonl").write_text("".join(lines[: case.limit]), encoding="utf-8")
        home = open_home(folder, case.model, folder)
        began = time.monotonic()
        run_id, outcome = home.run(
            {
                "kind": "eval",
                "model": reference(case.model),
                "suites": ["file:gsm8k.jsonl"],
                "max_prompt_length": PROMPT_TOKENS,
                "max_completion_length": NEW_TOKENS,
                "engine": "vllm",
                "batch_size": count,
                "dtype": case.dtype,
                "device": case.device,
            }
        )
        wall = time.monotonic() - began
        with home.db.read() as session:
            row = evaluations.list_for_run(session, run_id)[0]
            accuracy, engine = row.accuracy, dict(row.engine)
    took = sum(seconds for seconds, _ in calls)
    tokens = sum(made for _, made in calls)
    return {
        "outcome": f"{outcome.state}: {outcome.reason}",
        "items": count,
        "wall_s": wall,
        "generation_s": took,
        "calls": len(calls),
        "tokens": tokens,
        "tokens_per_s": tokens / took,
        "accuracy": accuracy,
        "engine": engine,
    }


PARTS: dict[str, Callable[[Case], dict[str, Any]]] = {
    "grpo": grpo,
    "handover": handover,
    "plain": plain,
    "evaluation": evaluation,
}


def _table(found: dict[str, Any]) -> str:
    lines = ["| what | figure |", "|---|---|"]

    def row(what: str, value: float | str | None, unit: str = "") -> None:
        shown = f"{value:,.4g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
        lines.append(f"| {what} | {shown} {unit} |".replace("  ", " "))

    for engine, figures in (found.get("grpo") or {}).items():
        if isinstance(figures, dict):
            for key, unit in (
                ("rollout_tokens_per_s", "tokens/s"),
                ("rollout_s", "s"),
                ("update_s", "s"),
                ("handover_s", "s"),
                ("step_s", "s"),
                ("logp_gap", "nats"),
                ("peak_gib", "GiB"),
            ):
                row(f"GRPO step, {engine}: {key}", figures[key], unit)
    hand = found.get("handover") or {}
    for key in ("start_s", "sleep_s", "handover_s", "bytes_per_s", "freed_gib", "stale_weights_refused"):
        if key in hand:
            row(f"hand-over: {key}", hand[key])
    if "samples" in hand:
        row(
            "hand-over: greedy samples equal to transformers'",
            f"{hand['samples_equal_to_transformers']}/{hand['samples']}",
        )
    ours, theirs = found.get("evaluation") or {}, found.get("plain") or {}
    if "generation_s" in ours:
        row(f"evaluation of {ours['items']} items: generation", ours["generation_s"], "s")
        row("evaluation: accuracy", ours["accuracy"])
    if "generation_s" in theirs:
        row(
            "plain vLLM: generation, first and second",
            ", ".join(f"{value:.2f}" for value in theirs["generation_s"]),
            "s",
        )
    if "generation_s" in ours and "generation_s" in theirs:
        row("evaluation over plain vLLM's first (asked: at most 1.1)", ours["generation_s"] / theirs["generation_s"][0])
        row("evaluation over plain vLLM's best", ours["generation_s"] / min(theirs["generation_s"]))
    return "\n".join(lines)


def _run_apart(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run one part in a process of its own and return what it found, or why it found nothing."""
    result = arguments.out / f"vllm-{name}.json"
    result.unlink(missing_ok=True)
    command = [sys.executable, "-m", "bench.vllm", *sys.argv[1:], "--only", name]
    began = time.monotonic()
    try:
        status = str(subprocess.run(command, timeout=PART_LIMIT_S, check=False).returncode)
    except subprocess.TimeoutExpired:
        status = f"stopped after {PART_LIMIT_S} s"
    if not result.is_file():
        return {"error": f"part {name}: {status}", "part_s": time.monotonic() - began}
    return {**json.loads(result.read_text(encoding="utf-8")), "part_s": time.monotonic() - began}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a model folder")
    parser.add_argument("--gsm8k", type=Path, help="the GSM8K test items as JSONL")
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    parser.add_argument("--parts", default=",".join(PARTS), help="comma-separated, of: " + ", ".join(PARTS))
    parser.add_argument("--steps", type=int, default=8, help="GRPO steps per engine")
    parser.add_argument("--prompts", type=int, default=32, help="prompts a GRPO step, each sampled 8 times")
    parser.add_argument("--limit", type=int, help="take so many GSM8K items only")
    parser.add_argument("--only", choices=list(PARTS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.only:
        case = Case(
            arguments.model.resolve(),
            arguments.gsm8k,
            arguments.out,
            arguments.steps,
            arguments.prompts,
            arguments.limit,
        )
        found = PARTS[arguments.only](case)
        aside = arguments.out / f"vllm-{arguments.only}.part"
        aside.write_text(json.dumps(found, indent=1, default=str) + "\n", encoding="utf-8")
        shutil.move(aside, arguments.out / f"vllm-{arguments.only}.json")
        return
    began = time.monotonic()
    results = {name: _run_apart(name, arguments) for name in arguments.parts.split(",")}
    (arguments.out / "vllm.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    table = _table(results)
    (arguments.out / "vllm.md").write_text(table + "\n", encoding="utf-8")
    print(table)
    for name, result in results.items():
        print(f"{name}: {result.get('error', 'done')}, {result['part_s']:.0f} s")
    print(f"total {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
