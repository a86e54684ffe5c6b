"""Extrapolated decoding in vLLM beside plain decoding of one checkpoint, and beside a two-model loop of transformers.

    python -m bench.extrapolated_decoding --model FOLDER --out FOLDER [--parts plain,line,loop] [--enforce-eager]

The second checkpoint is the first with noise on its matrices, made by the bench; prompts are made too. Parts, each in a process
of its own, so that one that fails or hangs loses itself alone:

- ``plain``: ``vllm.LLM`` on one checkpoint.
- ``line``: the same on a combined folder, with the same arguments; also alpha changed while it runs, and alpha 1 against plain.
- ``loop``: two transformers models, each with its own cache, one token at a time, batches of several sizes; and the reference
  engine of this project.

Greedy and sampled (0.6, top-p 0.95), every completion to its full length. The project must be installed so that vLLM finds its
plugin: ``pip install --no-deps --no-build-isolation --target SITE .``. Writes ``OUT/extrapolated_decoding.{json,md}``.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

NAME = "extrapolated_decoding"
SEQUENCES = 256
LOOP_TOKENS = 32
MODES: dict[str, dict[str, float]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.6, "top_p": 0.95},
}


@dataclass(frozen=True)
class Case:
    """What the parts need: both checkpoints, the combined folder, how much is decoded."""

    a: Path
    b: Path
    both: Path
    out: Path
    prompts: int
    tokens: int
    eager: bool

    @property
    def cuda(self) -> bool:
        import torch

        return torch.cuda.is_available()

    @property
    def dtype(self) -> str:
        return "bfloat16" if self.cuda else "float32"

    def prompt_ids(self) -> list[list[int]]:
        from core.engines.models import load_tokenizer
        from core.engines.prompts import PromptSpec, render

        tokenizer = load_tokenizer(self.a)
        texts = [f"What is {n % 97} plus {n % 89}? Write a story of that many words." for n in range(self.prompts)]
        return [list(render(tokenizer, text, PromptSpec(system="")).token_ids) for text in texts]


def _prepare(case: Case) -> None:
    """Make the second checkpoint and the combined folder once; every part finds them there."""
    import torch

    from core.engines.extrapolated_folder import write_combined
    from core.engines.models import load_model, load_tokenizer, save_model
    from core.engines.references import ModelSource

    model = load_model(case.a, torch.float32, "cpu")
    noise = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.add_(torch.randn(weight.shape, generator=noise), alpha=0.02 * float(weight.std()))
    case.b.mkdir(parents=True)
    save_model(model, case.b, torch.bfloat16 if case.cuda else torch.float32)
    load_tokenizer(case.a).save_pretrained(str(case.b))
    write_combined(case.both, ModelSource(case.a, "a", None), ModelSource(case.b, "b", None), 1.5)


def _llm(case: Case, folder: Path, **extra: Any) -> tuple[Any, float]:
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    import vllm

    began = time.monotonic()
    llm = vllm.LLM(
        model=str(folder),
        dtype=case.dtype,
        max_model_len=1024,
        max_num_seqs=SEQUENCES,
        generation_config="vllm",
        enforce_eager=case.eager or not case.cuda,
        **({"gpu_memory_utilization": 0.5} if case.cuda else {"kv_cache_memory_bytes": 2**29}),
        **extra,
    )
    return llm, time.monotonic() - began


def _rates(case: Case, llm: Any) -> dict[str, float]:
    """Tokens per second by mode: the second of two calls, with the prefix cache dropped in between."""
    import vllm

    prompts = [{"prompt_token_ids": ids} for ids in case.prompt_ids()]
    rates = {}
    for mode, sampling in MODES.items():
        params = vllm.SamplingParams(**sampling, max_tokens=case.tokens, ignore_eos=True, detokenize=False, seed=1)
        for _ in range(2):
            if not llm.reset_prefix_cache():
                raise RuntimeError("the prefix cache was not dropped, so the second call would be too fast")
            began = time.monotonic()
            outputs = llm.generate(prompts, params, use_tqdm=False)
            took = time.monotonic() - began
        made = sum(len(output.outputs[0].token_ids) for output in outputs)
        rates[mode] = made / took
    return rates


def _few(case: Case, llm: Any) -> list[list[int]]:
    """Greedy tokens of a few prompts, one at a time, so that batch shapes are the same wherever they are compared."""
    import vllm

    params = vllm.SamplingParams(temperature=0, max_tokens=32, ignore_eos=True)
    return [
        list(llm.generate([{"prompt_token_ids": ids}], params, use_tqdm=False)[0].outputs[0].token_ids)
        for ids in case.prompt_ids()[:8]
    ]


def plain(case: Case) -> dict[str, Any]:
    """One checkpoint, the later one."""
    import vllm

    llm, start = _llm(case, case.b)
    return {"vllm": vllm.__version__, "start_s": start, "tokens_per_s": _rates(case, llm), "few": _few(case, llm)}


def line(case: Case) -> dict[str, Any]:
    """Both, combined at their logits."""
    if not any(point.value.startswith("core.engines.") for point in entry_points(group="vllm.general_plugins")):
        raise SystemExit("vLLM would not find the plugin: pip install --no-deps --no-build-isolation --target SITE .")
    extension = "core.engines.extrapolated_vllm.AlphaExtension"
    llm, start = _llm(case, case.both, worker_extension_cls=extension)
    found: dict[str, Any] = {"start_s": start, "tokens_per_s": _rates(case, llm)}
    began = time.monotonic()
    found["alpha_now"] = llm.collective_rpc("set_extrapolation_alpha", args=(1.0,))
    found["alpha_change_s"] = time.monotonic() - began
    found["few"] = _few(case, llm)
    return found


def loop(case: Case) -> dict[str, Any]:
    """Two models, two caches, one token at a time: what one writes without an engine. And this project's reference engine."""
    import torch

    from core.engines.base import Request, SamplingParams
    from core.engines.extrapolated_engine import ExtrapolatedEngine
    from core.engines.models import load_model

    device = "cuda" if case.cuda else "cpu"
    models = [load_model(folder, getattr(torch, case.dtype), device) for folder in (case.a, case.b)]
    prompts = case.prompt_ids()
    sizes = (1, 16, 64, 256) if case.cuda else (1, 4)
    rates = {}
    for size in sizes:
        _by_hand(models, prompts[:size], 4)
        rates[str(size)] = _by_hand(models, prompts[:size], LOOP_TOKENS)
        print(f"loop, batch {size}: {rates[str(size)]:,.0f} tokens/s", flush=True)
    engine = ExtrapolatedEngine(models[0], models[1], 1.5, max_model_len=1024)
    requests = [Request(tuple(ids)) for ids in prompts[: sizes[-2]]]
    params = SamplingParams(temperature=0, max_tokens=LOOP_TOKENS)
    engine.generate(requests[:2], params)
    began = time.monotonic()
    made = sum(len(done.token_ids) for done in engine.generate(requests, params))
    rates[f"{len(requests)}, this project's reference engine"] = made / (time.monotonic() - began)
    return {"tokens_per_s": rates}


def _by_hand(models: list[Any], prompts: list[list[int]], tokens: int) -> float:
    """Tokens per second of a batch, greedy, prefill included."""
    import torch

    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(one)) + one for one in prompts], device=models[0].device)
    mask = torch.tensor([[0] * (width - len(one)) + [1] * len(one) for one in prompts], device=models[0].device)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    caches: list[Any] = [None, None]
    began = time.monotonic()
    with torch.no_grad():
        for _ in range(tokens):
            logits = []
            for place, model in enumerate(models):
                output = model(
                    input_ids=ids,
                    attention_mask=mask,
                    position_ids=positions,
                    past_key_values=caches[place],
                    use_cache=True,
                    logits_to_keep=1,
                )
                caches[place] = output.past_key_values
                logits.append(output.logits[:, -1].float())
            ids = torch.lerp(logits[0], logits[1], 1.5).argmax(-1, keepdim=True)
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
            positions = positions[:, -1:] + 1
    ids.tolist()  # waits for the card
    return len(prompts) * tokens / (time.monotonic() - began)


PARTS: dict[str, Callable[[Case], dict[str, Any]]] = {"plain": plain, "line": line, "loop": loop}


def _table(found: dict[str, Any]) -> str:
    lines = ["| what | tokens/s | ratio |", "|---|---|---|"]
    plains = found.get("plain", {}).get("tokens_per_s", {})
    lines += [f"| plain decoding of one checkpoint, {mode} | {rate:,.0f} | |" for mode, rate in plains.items()]
    ours = found.get("line", {}).get("tokens_per_s", {})
    for mode, rate in ours.items():
        ratio = f"{rate / plains[mode]:.2f} x plain (asked: at least 0.45)" if mode in plains else ""
        lines.append(f"| extrapolated decoding in vLLM, {mode} | {rate:,.0f} | {ratio} |")
    loops = found.get("loop", {}).get("tokens_per_s", {})
    for size, rate in loops.items():
        ratio = f"vLLM is {ours['greedy'] / rate:.1f} x this (asked: at least 10)" if "greedy" in ours else ""
        lines.append(f"| two-model transformers loop, batch {size} | {rate:,.0f} | {ratio} |")
    few, same = found.get("line", {}).get("few"), found.get("plain", {}).get("few")
    if few and same:
        equal = sum(one == other for one, other in zip(few, same, strict=True))
        lines.append(f"| alpha 1 answers as the checkpoint alone, token for token | | {equal}/{len(few)} |")
    return "\n".join(lines)


def _run_apart(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run one part in a process of its own and return what it found, or why it found nothing."""
    result = arguments.out / f"{NAME}-{name}.json"
    result.unlink(missing_ok=True)
    command = [sys.executable, "-m", f"bench.{NAME}", *sys.argv[1:], "--only", name]
    began = time.monotonic()
    # A session of its own: vLLM's core is a process of the part's, and has to end with it.
    part = subprocess.Popen(command, start_new_session=True)
    try:
        status = f"exit status {part.wait(arguments.part_limit)}"
    except subprocess.TimeoutExpired:
        os.killpg(part.pid, signal.SIGKILL)
        part.wait()
        status = f"stopped after {arguments.part_limit} s"
    found = json.loads(result.read_text(encoding="utf-8")) if result.is_file() else {"error": f"part {name}: {status}"}
    return {**found, "part_s": time.monotonic() - began}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a model folder")
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    parser.add_argument(
        "--work", type=Path, help="where the second checkpoint is made; default OUT/work, removed afterwards"
    )
    parser.add_argument("--parts", default=",".join(PARTS), help="comma-separated, of: " + ", ".join(PARTS))
    parser.add_argument("--prompts", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=128, help="new tokens per prompt")
    parser.add_argument("--part-limit", type=int, default=240, help="seconds after which a part is stopped")
    parser.add_argument("--enforce-eager", action="store_true", help="no CUDA graphs and no torch.compile, for both")
    parser.add_argument("--only", choices=list(PARTS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    work = (arguments.work or arguments.out / "work").resolve()
    case = Case(
        a=arguments.model.resolve(),
        b=work / "moved",
        both=work / "both",
        out=arguments.out,
        prompts=arguments.prompts,
        tokens=arguments.tokens,
        eager=arguments.enforce_eager,
    )
    if arguments.only:
        found = PARTS[arguments.only](case)
        path = arguments.out / f"{NAME}-{arguments.only}.json"
        path.write_text(json.dumps(found, indent=1, default=str) + "\n", encoding="utf-8")
        return
    began = time.monotonic()
    shutil.rmtree(work, ignore_errors=True)
    _prepare(case)
    results = {name: _run_apart(name, arguments) for name in arguments.parts.split(",")}
    shutil.rmtree(work, ignore_errors=True)
    table = _table(results)
    (arguments.out / f"{NAME}.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (arguments.out / f"{NAME}.md").write_text(table + "\n", encoding="utf-8")
    print(table)
    for name, result in results.items():
        print(f"{name}: {result.get('error', 'done')}, {result['part_s']:.0f} s")
    print(f"total {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
