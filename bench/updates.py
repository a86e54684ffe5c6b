"""Whole updates on a CUDA card: a full-parameter step inside 24 GiB, and how sequences of many lengths are laid out.

Parts of ``python -m bench.trainer``. Both run :func:`core.train.update.update`, the trainer's own code.
"""

import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bench import measure, trl_grpo, workload
from core.planning import Card
from core.planning import plan as plan_of
from core.planning.checkpointing import activation_bytes, fewest_checkpointed_layers
from core.recipes import TrainRecipe, parse_recipe
from core.recipes.catalogue import MODELS
from core.rl import offload, packing
from core.rl.lean import make_lean
from core.rl.objective import Objective
from core.rl.offload import OffloadedAdamW
from core.rl.optim import MasterOptimizer, StepResult
from core.rl.packing import plan_micro_batches
from core.train.policy import load_policy
from core.train.recompute import checkpoint_layers
from core.train.reference import reference_logp
from core.train.update import Head, MicroBatch, TrainSequence, build_micro_batches, update

BUDGET_GIB, CAP_GIB = 22, 24
CHUNK = 1024
DEVICE = torch.device("cuda")
FACTS = MODELS["Qwen/Qwen2.5-1.5B"]


class _Nothing(MasterOptimizer):
    """An optimizer that leaves everything alone: what is timed is the gradient."""

    def _new_state(self) -> tuple[dict[str, torch.Tensor], dict[str, dict[str, torch.Tensor]]]:
        return {}, {}

    def __init__(self, model: torch.nn.Module) -> None:
        self.parameters = dict(model.named_parameters())

    def _update(self, name: str, grad: torch.Tensor, lr: float) -> None:
        """Nothing to do: ``step`` below never calls it."""

    def step(self, lr: float | None = None, *, max_grad_norm: float | None = None) -> StepResult:
        return StepResult(True, 0.0, 1.0, lr or 0.0)


def _sequences(lengths: Sequence[tuple[int, int]]) -> list[TrainSequence]:
    words = random.Random(0)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(words.randrange(FACTS.vocab) for _ in range(count))

    return [TrainSequence(ids(p), ids(c), (-1.0) ** place) for place, (p, c) in enumerate(lengths)]


def _update(
    model: Any, optimizer: MasterOptimizer, sequences: list[TrainSequence], batches: Sequence[MicroBatch]
) -> float:
    """Seconds of one update by the host's clock, from idle to idle."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    update(
        model.model,
        Head(model.lm_head.weight, 1.0, CHUNK, tied=True),
        optimizer,
        sequences,
        batches,
        objective=Objective(),
        lr=1e-6,
        max_grad_norm=1.0,
        old_logp=None,
        ref_logp=None,
    )
    torch.cuda.synchronize()
    return time.perf_counter() - start


def full_step() -> dict[str, object]:
    """A full-parameter update with ``adamw_offload``: two sequences of 16,384 tokens, the frozen reference on the card.

    Rollouts share the trained weights, so nothing else is resident. The process is capped to 24 GiB.
    """
    torch.cuda.set_per_process_memory_fraction(CAP_GIB * measure.GIB / torch.cuda.get_device_properties(0).total_memory)
    tokens = 16_384
    held = 3 * 2 * FACTS.parameters  # weights, gradients and the reference in bfloat16
    available = BUDGET_GIB * measure.GIB - held
    count = fewest_checkpointed_layers(FACTS, tokens=tokens, chunk=CHUNK, available=available)
    if count is None:
        raise RuntimeError("the planner finds no number of layers that fits")
    model = workload.build_model()
    reference = workload.build_model(gradients=False)
    make_lean(model)
    checkpoint_layers(model, count)
    started = time.perf_counter()
    optimizer = OffloadedAdamW(model.named_parameters(), lr=1e-6)
    pinning = time.perf_counter() - started
    sequences = _sequences([(1024, tokens - 1024)] * 2)
    batches = build_micro_batches(sequences, [[0], [1]], DEVICE)
    _update(model, optimizer, sequences, batches)
    measure.fresh()
    times = [_update(model, optimizer, sequences, batches) for _ in range(3)]
    peak = torch.cuda.max_memory_allocated() / measure.GIB
    reserved = torch.cuda.max_memory_reserved() / measure.GIB
    stepping = [measure.seconds(optimizer.step) for _ in range(3)]
    activations = activation_bytes(FACTS, tokens=tokens, chunk=CHUNK, checkpointed=count)
    predicted = (held + max(activations, offload.STAGING_BYTES)) / measure.GIB
    found = {
        "tokens": tokens,
        "sequences": len(sequences),
        "checkpointed_layers": count,
        "peak_gib": peak,
        "reserved_gib": reserved,
        "predicted_gib": predicted,
        "update_s": times,
        "optimizer_step_s": stepping,
        "pinned_gib": 12 * FACTS.parameters / measure.GIB,
        "pinning_s": pinning,
    }
    print({name: round(value, 3) if isinstance(value, float) else value for name, value in found.items()})
    del reference
    torch.cuda.set_per_process_memory_fraction(1.0)
    return found


def planned() -> dict[str, object]:
    """A whole planned 1.5B step: the recipe's plan for a 24 GiB card, ``load_policy``, ``adamw_offload``, 16,384 tokens.

    The process is capped to 24 GiB; the frozen start model rests on the host and comes over to score. The plan's
    ``allocated_gib`` is compared with the recorded peak of scoring, update and optimizer step together.
    """
    folder = trl_grpo.model_folder("qwen-1.5b", None, Path("/tmp/driftline-bench-models"))
    recipe = parse_recipe(
        {
            "kind": "train",
            "model": folder.name,
            "data": "gsm8k",
            "max_steps": 10,
            "prompts_per_step": 2,
            "num_generations": 2,
            "max_prompt_length": 1024,
            "max_completion_length": 15_360,
            "optimizer": "adamw_offload",
            "engine": "transformers",
            "device": {"kind": "cuda", "memory_gib": CAP_GIB},
        },
        known_models=[folder.name],
    )
    assert isinstance(recipe, TrainRecipe)
    plan = plan_of(recipe, Card(CAP_GIB, "capped"), facts=FACTS)
    torch.cuda.set_per_process_memory_fraction(CAP_GIB * measure.GIB / torch.cuda.get_device_properties(0).total_memory)
    started = time.perf_counter()
    policy = load_policy(folder, recipe, DEVICE, checkpointed_layers=plan.checkpointed_layers)
    loading = time.perf_counter() - started
    sequences = _sequences([(1024, 15_360)] * 2)
    batches = build_micro_batches(sequences, [[0], [1]], DEVICE)

    def step() -> None:
        reference = reference_logp(policy.reference, [batches])[0]
        with policy.training(1):
            update(
                policy.body,
                policy.head,
                policy.optimizer,
                sequences,
                batches,
                objective=Objective(),
                lr=1e-6,
                max_grad_norm=1.0,
                old_logp=None,
                ref_logp=reference,
            )

    step()
    measure.fresh()
    times = [measure.seconds(step) for _ in range(3)]
    peak = torch.cuda.max_memory_allocated() / measure.GIB
    share = measure.seconds(policy.changed_share)
    found = {
        "tokens": 16_384,
        "sequences": len(sequences),
        "checkpointed_layers": plan.checkpointed_layers,
        "micro_batch_tokens": plan.micro_batch_tokens,
        "peak_gib": peak,
        "reserved_gib": torch.cuda.max_memory_reserved() / measure.GIB,
        "predicted_gib": plan.allocated_gib,
        "error": plan.allocated_gib / peak - 1,
        "planned_card_gib": plan.peak_gib,
        "planned_pinned_gib": plan.pinned_gib,
        "step_s": times,
        "changed_share_s": share,
        "loading_s": loading,
    }
    print({name: round(value, 3) if isinstance(value, float) else value for name, value in found.items()})
    torch.cuda.set_per_process_memory_fraction(1.0)
    return found


def layouts() -> dict[str, object]:
    """Tokens per second of one update over 64 completions of mixed lengths, padded as they come and sorted by length.

    Lengths are log-normal (median 450, 2,048 at most, a tenth truncated there), prompts 60 to 240 tokens: what answers to
    mathematical questions look like. The padded layout fills micro-batches of the same padded tokens in the given order
    with every row as long as the longest of the update, as trainers do that pad once.
    """
    draw = random.Random(0)
    lengths = [
        (draw.randint(60, 240), 2048 if draw.random() < 0.1 else min(2048, int(draw.lognormvariate(6.1, 0.7))))
        for _ in range(64)
    ]
    sequences = _sequences(lengths)
    totals = [sequence.tokens for sequence in sequences]
    model = workload.build_model()
    make_lean(model)
    checkpoint_layers(model)
    optimizer = _Nothing(model)
    budget = 16_384
    rows = budget // max(totals)
    in_order = [list(range(start, min(start + rows, 64))) for start in range(0, 64, rows)]
    works = {
        "padded to the longest": [
            _widened(batch, max(totals)) for batch in build_micro_batches(sequences, in_order, DEVICE)
        ],
        "sorted by length": build_micro_batches(sequences, plan_micro_batches(totals, budget), DEVICE),
    }
    chosen = packing.LAUNCH_BOUND_TOKENS
    for bound in (6000, 8192, 12_000):
        packing.LAUNCH_BOUND_TOKENS = bound
        works[f"launch bound {bound}"] = build_micro_batches(sequences, plan_micro_batches(totals, budget), DEVICE)
    packing.LAUNCH_BOUND_TOKENS = chosen
    found: dict[str, Any] = {"tokens": sum(totals), "longest": max(totals)}
    for name, batches in works.items():
        _update(model, optimizer, sequences, batches)
        spent = sorted(_update(model, optimizer, sequences, batches) for _ in range(3))[1]
        shape = sum(batch.input_ids_BS.numel() for batch in batches)
        found[name] = {
            "micro_batches": len(batches),
            "seconds": spent,
            "tokens_per_s": sum(totals) / spent,
            "padded_tokens": shape,
        }
        print(name, found[name])
    found["speedup"] = found["padded to the longest"]["seconds"] / found["sorted by length"]["seconds"]
    print(f"sorted by length is {found['speedup']:.2f} x as fast")
    return found


def _widened(batch: MicroBatch, width: int) -> MicroBatch:
    """The same rows with more padding."""
    rows, narrow = batch.input_ids_BS.shape
    wide = torch.nn.functional.pad(batch.input_ids_BS, (0, width - narrow))
    targets = torch.nn.functional.pad(batch.targets_P.reshape(rows, narrow), (0, width - narrow))
    places_T = batch.places_T // narrow * width + batch.places_T % narrow
    return MicroBatch(batch.indices, wide, targets.flatten(), places_T, batch.lengths)
