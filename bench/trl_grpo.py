"""One training step of TRL's GRPOTrainer with Liger's kernels beside Driftline's, on the same model, tokens and rewards.

Run ``python -m bench.trl_grpo --out FOLDER [--model FOLDER_OF_SMOLLM2]`` on the card's machine. Rollouts are fixed token ids
given to both, so that what is timed is the training step alone: forward, loss, backward, clipping, AdamW. Both leave the
reference out (TRL's beta 0). Every section runs in a process of its own, so that one which fails loses no other and peaks do
not mix. Writes ``FOLDER/trl-grpo.json`` and prints a table.

TRL runs in the two ways that people use: bfloat16 weights, whose AdamW has no float32 masters (cheaper, and too coarse for the
learning rates of reinforcement learning), and float32 weights under bfloat16 autocast, which is the like of Driftline's
masters. Since TRL 1.x ``use_liger_kernel`` means Liger's layers; the loss is TRL's own fused head.
"""

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROMPTS, GENERATIONS = 4, 8
STEPS = 4  # the first is the warm-up
SECTION_TIMEOUT_S = 60
MARK = "RESULT "


@dataclass(frozen=True)
class Work:
    """A model and a batch: 4 prompts x 8 completions."""

    name: str
    longest: int
    median: float
    rows: int  # of one of TRL's padded micro-batches
    gradients_checkpointed: bool


WORKS = {
    "smollm2-135m": Work("SmolLM2-135M", 1024, 300.0, 8, gradients_checkpointed=False),
    "qwen-1.5b": Work("Qwen2.5-1.5B shape, random weights", 2048, 450.0, 4, gradients_checkpointed=True),
}
OURS = "driftline adamw"
ALL = (OURS, "driftline adamw_offload", "driftline adamw_8bit", "trl bf16 weights", "trl fp32 weights")
WAYS = {"smollm2-135m": (OURS, "trl fp32 weights"), "qwen-1.5b": ALL}


def rollouts(work: Work, vocabulary: int) -> list[tuple[list[int], list[int]]]:
    """Prompt and completion ids: completions are log-normal in length, a tenth at the limit."""
    draw = random.Random(0)
    found = []
    for _ in range(PROMPTS):
        prompt = [draw.randrange(10, vocabulary) for _ in range(draw.randint(60, 240))]
        for _ in range(GENERATIONS):
            length = work.longest if draw.random() < 0.1 else _length(draw, work)
            found.append((prompt, [draw.randrange(10, vocabulary) for _ in range(length)]))
    return found


def _length(draw: random.Random, work: Work) -> int:
    return max(16, min(work.longest, int(work.median * draw.lognormvariate(0.0, 0.7))))


def reward(place: int) -> float:
    """Half of each group is right."""
    return float(place % 2)


def driftline(work: Work, folder: Path, optimizer: str) -> dict[str, Any]:
    """Median seconds and peak of steps by the trainer's own update, as the planner lays them out for 24 GiB."""
    import torch

    from bench import measure
    from core.planning import Card
    from core.planning.facts import folder_facts
    from core.planning.plan import budget_bytes, train_batches
    from core.recipes import TrainRecipe, parse_recipe
    from core.rl.advantages import grpo
    from core.rl.objective import Objective
    from core.rl.packing import plan_micro_batches
    from core.train.policy import load_policy
    from core.train.update import TrainSequence, build_micro_batches, update

    recipe = parse_recipe(
        {
            "kind": "train",
            "model": folder.name,
            "data": "gsm8k",
            "max_steps": 10,
            "prompts_per_step": 4,
            "num_generations": GENERATIONS,
            "max_prompt_length": 240,
            "max_completion_length": work.longest,
            "optimizer": optimizer,
            "engine": "transformers",
            "device": {"kind": "cuda", "memory_gib": 80},
        },
        known_models=[folder.name],
    )
    assert isinstance(recipe, TrainRecipe)
    facts = folder_facts(folder.name, folder)
    batches = train_batches(recipe, facts, budget_bytes(recipe, Card(80, "bench")))
    policy = load_policy(folder, recipe, torch.device("cuda"), checkpointed_layers=batches.layers)
    samples = rollouts(work, facts.vocab)
    found = grpo(
        torch.tensor([reward(place) for place in range(len(samples))], dtype=torch.float64),
        torch.arange(len(samples)) // GENERATIONS,
        torch.ones(len(samples), dtype=torch.bool),
    )
    sequences = [
        TrainSequence(tuple(prompt), tuple(completion), float(found.advantages_B[place]))
        for place, (prompt, completion) in enumerate(samples)
    ]
    layout = plan_micro_batches([sequence.tokens for sequence in sequences], batches.micro)
    micro = build_micro_batches(sequences, layout, policy.device)
    objective = Objective(clip_low=0.2, clip_high=0.28)

    def step() -> None:
        with policy.training(1):
            update(
                policy.body,
                policy.head,
                policy.optimizer,
                sequences,
                micro,
                objective=objective,
                lr=1e-6,
                max_grad_norm=1.0,
                old_logp=None,
                ref_logp=None,
            )

    times = []
    for number in range(STEPS):
        if number == 1:
            measure.fresh()
        times.append(measure.seconds(step))
    return _figures(times, torch.cuda.max_memory_allocated(), len(micro)) | {"checkpointed_layers": batches.layers}


def trl(work: Work, folder: Path, dtype: str) -> dict[str, Any]:
    """The same by GRPOTrainer: fixed rollouts in, its own padding, loss and optimizer."""
    import os

    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    model = AutoModelForCausalLM.from_pretrained(str(folder), dtype=getattr(torch, dtype), attn_implementation="sdpa")
    samples = rollouts(work, model.config.vocab_size)
    times: list[float] = []

    class Clock(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            torch.cuda.synchronize()
            if state.global_step == 1:
                torch.cuda.reset_peak_memory_stats()
            self.began = time.perf_counter()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            torch.cuda.synchronize()
            times.append(time.perf_counter() - self.began)

    def fixed(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        chosen = samples[: len(prompts)]
        return {
            "prompt_ids": [list(prompt) for prompt, _ in chosen],
            "completion_ids": [list(completion) for _, completion in chosen],
            "logprobs": None,
        }

    config = GRPOConfig(
        output_dir="/tmp/trl-grpo-bench",
        per_device_train_batch_size=work.rows,
        gradient_accumulation_steps=len(samples) // work.rows,
        num_generations=GENERATIONS,
        max_completion_length=work.longest,
        max_steps=STEPS,
        learning_rate=1e-6,
        lr_scheduler_type="constant",
        beta=0.0,
        epsilon=0.2,
        epsilon_high=0.28,
        loss_type="grpo",
        bf16=True,
        gradient_checkpointing=work.gradients_checkpointed,
        use_liger_kernel=True,
        save_strategy="no",
        report_to="none",
        logging_steps=1,
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **_: [reward(place) for place in range(len(completions))],
        args=config,
        train_dataset=Dataset.from_dict({"prompt": ["x"] * 64}),
        processing_class=tokenizer,
        callbacks=[Clock()],
        rollout_func=fixed,
    )
    trainer.train()
    return _figures(times, torch.cuda.max_memory_allocated(), len(samples) // work.rows)


def _figures(times: Sequence[float], peak: int, micro_batches: int) -> dict[str, Any]:
    measured = sorted(times[1:])
    return {
        "median_s": measured[len(measured) // 2],
        "steps_s": list(times),
        "peak_gib": peak / 2**30,
        "micro_batches": micro_batches,
    }


def model_folder(name: str, given: Path | None, home: Path) -> Path:
    """The folder of a model: SmolLM2's where given, else random weights of the shape with a tokenizer of single words."""
    if name == "smollm2-135m" and given is not None:
        return given
    folder = home / name
    if (folder / "config.json").is_file():
        return folder
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    if name == "qwen-1.5b":
        from bench.workload import QWEN_1_5B

        model: Any = Qwen2ForCausalLM(Qwen2Config(**QWEN_1_5B))
    else:
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=49_152,
                hidden_size=576,
                intermediate_size=1536,
                num_hidden_layers=30,
                num_attention_heads=9,
                num_key_value_heads=3,
                max_position_embeddings=8192,
                tie_word_embeddings=True,
            )
        )
    torch.set_default_dtype(torch.float32)
    model.save_pretrained(str(folder))
    words = Tokenizer(WordLevel({"<pad>": 0, "<eos>": 1, "x": 2}, unk_token="<pad>"))
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>").save_pretrained(str(folder))
    return folder


def section(work: Work, way: str, folder: Path) -> dict[str, Any]:
    """One way on one model, in this process."""
    who, _, how = way.partition(" ")
    if who == "driftline":
        return driftline(work, folder, how)
    return trl(work, folder, {"bf16 weights": "bfloat16", "fp32 weights": "float32"}[how])


def run(works: Sequence[str], given: Path | None, home: Path, clock: Callable[[], float]) -> dict[str, Any]:
    """Every way on every model, each in its own process; what failed says how."""
    found: dict[str, Any] = {}
    for name in works:
        folder = model_folder(name, given, home)
        found[name] = {"model": WORKS[name].name}
        for way in WAYS[name]:
            began = clock()
            command = [sys.executable, "-m", "bench.trl_grpo", "--section", name, way, "--folder", str(folder)]
            found[name][way] = _answer(command) | {"section_s": clock() - began}
            print(name, way, found[name][way], flush=True)
    return found


def _answer(command: list[str]) -> dict[str, Any]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECTION_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": f"more than {SECTION_TIMEOUT_S} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if done.returncode or not lines:
        return {"failed": (done.stderr or done.stdout)[-1500:]}
    answer: dict[str, Any] = json.loads(lines[-1].removeprefix(MARK))
    return answer


def table(found: dict[str, Any]) -> str:
    """Markdown: seconds and peak of each way, and how many times Driftline's adamw they are."""
    lines = ["| model | way | step (s) | x | peak (GiB) | x |", "|---|---|---|---|---|---|"]
    for name, answers in found.items():
        ours = answers.get(OURS, {})
        for way in WAYS[name]:
            answer = answers.get(way, {"failed": "not run"})
            if "failed" in answer:
                lines.append(f"| {answers['model']} | {way} | failed | | | |")
                continue
            ratios = [answer[key] / ours[key] if key in ours else float("nan") for key in ("median_s", "peak_gib")]
            lines.append(
                f"| {answers['model']} | {way} | {answer['median_s']:.3f} | {ratios[0]:.2f} "
                f"| {answer['peak_gib']:.2f} | {ratios[1]:.2f} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    parser.add_argument("--model", type=Path, help="folder of SmolLM2-135M; random weights of its shape without")
    parser.add_argument("--works", default=",".join(WORKS))
    parser.add_argument(
        "--home", type=Path, default=Path("/tmp/driftline-bench-models"), help="where random models are put"
    )
    parser.add_argument("--section", nargs=2, metavar=("WORK", "WAY"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.section:
        print(MARK + json.dumps(section(WORKS[given.section[0]], given.section[1], given.folder)))
        return
    from bench import measure

    began = time.perf_counter()
    found = run(given.works.split(","), given.model, given.home, time.perf_counter)
    print(table(found))
    spent = time.perf_counter() - began
    given.out.mkdir(parents=True, exist_ok=True)
    report = {"environment": measure.environment(), "total_s": spent, "trl_grpo": found}
    (given.out / "trl-grpo.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"total {spent:.0f} s")


if __name__ == "__main__":
    main()
