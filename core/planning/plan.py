"""Does a recipe fit a card, with which micro-batch, and which smallest change would make it fit.

A change is one field of the recipe. They are tried in the order of how little they alter the experiment: first those that
change no result beyond rounding (micro-batch, chunk, engine, offloading), then precision of the moments and the weights, then
lengths, then adapters.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.planning.analyses import analysis_memory
from core.planning.checkpointing import fewest_checkpointed_layers
from core.planning.cost import disk_bytes
from core.planning.engine import runs_on_vllm
from core.planning.facts import PlanError, model_facts
from core.planning.memory import (
    ALLOCATOR_SLACK,
    GIB,
    ROLLOUT_TOKENS,
    Memory,
    adapter_extra,
    decoded_bytes,
    element_bytes,
    eval_memory,
    train_memory,
)
from core.recipes.analysis import AnalysisRecipe
from core.recipes.catalogue import ModelFacts
from core.recipes.evaluation import EvalRecipe
from core.recipes.train import Lora, Optimizer, TrainRecipe

LARGEST_MICRO_BATCH = 16_384  # padded tokens; larger ones are not faster
# Measured on an H200 (bench/results/trainer.md): a 1.5B model with every layer checkpointed takes 1.235 times as long as
# with none, and a micro-batch of fewer padded tokens than this (core.rl.packing's own figure) no less time than one of them.
RECOMPUTATION = 0.235
LAUNCH_BOUND_TOKENS = 10_000
HEADROOM = 0.9  # share of the budget that chosen batches may fill, since some components are estimates
SMALLEST_CHUNK = 64
SMALLEST_COMPLETION = 16


@dataclass(frozen=True)
class Card:
    """What a worker runs on: a card's memory, or the host's for a CPU worker (GiB).

    ``host_gib`` is the memory of the host that holds the card, None where it is not known.
    """

    memory_gib: float
    name: str
    host_gib: float | None = None

    def holds(self, memory: Memory, budget: int) -> bool:
        """Whether the budget on the card and the host's memory are enough."""
        return memory.peak <= budget and (self.host_gib is None or memory.host <= self.host_gib * GIB)


@dataclass(frozen=True)
class Plan:
    """Predicted memory (GiB) by component, and whether it fits.

    ``peak_gib`` is what always exists plus the largest phase, so it is less than the sum of the components.
    ``smallest_change`` is one recipe field and its value, None when the recipe fits or no single change is enough.
    ``micro_batch_tokens`` and ``rollout_tokens`` are the padded tokens per micro-batch and per decoding batch that the
    prediction holds for, so the trainer and its engine must use them; so is ``checkpointed_layers``. None of them changes
    what a run computes. ``allocated_gib`` is the part of the peak that the curve ``memory/peak_gib`` of a card will show.
    ``host_gib`` is the host's memory that a run on a card takes, ``pinned_gib`` the page-locked part of it.
    """

    fits: bool
    components_gib: dict[str, float]
    peak_gib: float
    allocated_gib: float
    budget_gib: float
    host_gib: float
    pinned_gib: float
    disk_gib: float
    smallest_change: str | None
    micro_batch_tokens: int | None
    rollout_tokens: int | None
    checkpointed_layers: int


def plan(
    recipe: TrainRecipe | EvalRecipe | AnalysisRecipe,
    card: Card,
    *,
    facts: ModelFacts | None = None,
    models_dir: Path | None = None,
) -> Plan:
    """Plan ``recipe`` on ``card``; the budget is the smaller of the card's memory and the recipe's ``device.memory_gib``.

    ``facts`` is needed where the model is a run's checkpoint (the start model's facts) and for analyses. Raises
    :class:`PlanError` when the model's shape is not known.
    """
    match recipe:
        case TrainRecipe():
            return _plan_train(recipe, card, facts or model_facts(recipe.model, models_dir))
        case EvalRecipe():
            return _plan_eval(recipe, card, facts or model_facts(recipe.model, models_dir))
        case AnalysisRecipe():
            if facts is None:
                raise PlanError(f"the model of {recipe.run} is not known; give its start model's facts")
            return _result(analysis_memory(recipe, facts), int(card.memory_gib * GIB))


def budget_bytes(recipe: TrainRecipe | EvalRecipe, card: Card) -> int:
    """Bytes the run may use."""
    return int(min(card.memory_gib, recipe.device.memory_gib) * GIB)


@dataclass(frozen=True)
class Batches:
    """Padded tokens per micro-batch and per decoding batch, and the layers whose forward runs twice."""

    micro: int
    rollout: int
    layers: int


def train_batches(recipe: TrainRecipe, facts: ModelFacts, budget: int) -> Batches:
    """The fastest batches that leave headroom in ``budget``.

    The decoding batch is as large as memory allows beside the smallest micro-batch. A micro-batch holds whole longest
    sequences; where the recipe sets its size, a longer sequence still has one of its own.
    """
    longest = recipe.max_prompt_length + recipe.max_completion_length
    rollout = _rollout_tokens(longest, lambda tokens: train_memory(recipe, facts, longest, tokens).peak, budget)
    if recipe.micro_batch_tokens is not None:
        micro = max(recipe.micro_batch_tokens, longest)
        layers = _fewest_layers(recipe, facts, micro, HEADROOM * budget)
        layers = _fewest_layers(recipe, facts, micro, budget) if layers is None else layers
        return Batches(micro, rollout, facts.layers if layers is None else layers)
    rows = max(1, min(LARGEST_MICRO_BATCH // longest, recipe.prompts_per_update * recipe.num_generations))
    fitting = [
        (row * longest, layers)
        for row in range(rows, 0, -1)
        if (layers := _fewest_layers(recipe, facts, row * longest, HEADROOM * budget)) is not None
    ]
    if fitting:
        micro, layers = min(fitting, key=lambda choice: relative_time(facts, *choice))
        return Batches(micro, rollout, layers)
    last = _fewest_layers(recipe, facts, longest, budget)
    return Batches(longest, rollout, (facts.layers if recipe.device.kind == "cuda" else 0) if last is None else last)


def relative_time(facts: ModelFacts, micro: int, layers: int) -> float:
    """Time per token of a forward and backward, of which only ratios mean anything."""
    return max(micro, LAUNCH_BOUND_TOKENS) / micro * (1 + RECOMPUTATION * layers / facts.layers)


def _fewest_layers(recipe: TrainRecipe, facts: ModelFacts, micro: int, room: float) -> int | None:
    """The fewest checkpointed layers with which the whole plan stays within ``room`` bytes; None when it cannot."""
    whole = train_memory(recipe, facts, micro, recipe.max_prompt_length + recipe.max_completion_length)
    if recipe.device.kind == "cpu":
        return 0 if whole.peak <= room else None
    always = sum(whole.static.values())
    others = max(sum(phase.values()) for name, phase in whole.phases.items() if name != "backward")
    if always + others > room:
        return None
    width = element_bytes(recipe.dtype)
    return fewest_checkpointed_layers(
        facts,
        tokens=micro,
        chunk=recipe.logit_chunk_tokens,
        available=int((room - always) / (1 + ALLOCATOR_SLACK)) - decoded_bytes(recipe, facts),
        width=width,
        extra=adapter_extra(recipe, facts, width),
    )


def _rollout_tokens(longest: int, peak: Callable[[int], int], budget: int) -> int:
    """Halve the decoding batch until its phase leaves headroom, down to one longest sequence."""
    tokens = ROLLOUT_TOKENS
    while tokens > longest and peak(tokens) > HEADROOM * budget:
        tokens //= 2
    return max(tokens, longest)


def eval_tokens(recipe: EvalRecipe, facts: ModelFacts, budget: int) -> int:
    """Tokens of the largest decoding batch that leaves headroom in ``budget``."""
    longest = recipe.max_prompt_length + recipe.max_completion_length
    return _rollout_tokens(longest, lambda size: eval_memory(recipe, facts, size).peak, budget)


def _train_at(recipe: TrainRecipe, facts: ModelFacts, budget: int) -> tuple[Memory, Batches]:
    batches = train_batches(recipe, facts, budget)
    return train_memory(recipe, facts, batches.micro, batches.rollout, batches.layers), batches


def _eval_at(recipe: EvalRecipe, facts: ModelFacts, budget: int) -> tuple[Memory, int]:
    tokens = eval_tokens(recipe, facts, budget)
    return eval_memory(recipe, facts, tokens), tokens


def _plan_train(recipe: TrainRecipe, card: Card, facts: ModelFacts) -> Plan:
    budget = budget_bytes(recipe, card)
    memory, batches = _train_at(recipe, facts, budget)
    fits = card.holds(memory, budget)
    return _result(
        memory,
        budget,
        fits=fits,
        change=None if fits else _smallest(_train_changes(recipe, card, facts)),
        disk=disk_bytes(recipe, facts),
        batches=(batches.micro, batches.rollout),
        layers=batches.layers,
    )


def _plan_eval(recipe: EvalRecipe, card: Card, facts: ModelFacts) -> Plan:
    budget = budget_bytes(recipe, card)
    memory, tokens = _eval_at(recipe, facts, budget)
    change = None if memory.peak <= budget else _smallest(_eval_changes(recipe, card, facts))
    return _result(memory, budget, change=change, batches=(None, tokens))


def _result(
    memory: Memory,
    budget: int,
    *,
    fits: bool | None = None,
    change: str | None = None,
    disk: int = 0,
    batches: tuple[int | None, int | None] = (None, None),
    layers: int = 0,
) -> Plan:
    components = dict(memory.static)
    slack = 0
    for phase in memory.phases.values():
        slack = max(slack, phase.get("allocator_slack", 0))
        components.update({name: size for name, size in phase.items() if name != "allocator_slack"})
    components["allocator_slack"] = slack
    return Plan(
        fits=memory.peak <= budget if fits is None else fits,
        components_gib={name: _gib(size) for name, size in components.items() if size},
        peak_gib=_gib(memory.peak),
        allocated_gib=_gib(memory.allocated),
        budget_gib=_gib(budget),
        host_gib=_gib(memory.host),
        pinned_gib=_gib(memory.pinned),
        disk_gib=_gib(disk),
        smallest_change=change,
        micro_batch_tokens=batches[0],
        rollout_tokens=batches[1],
        checkpointed_layers=layers,
    )


def _gib(size: int) -> float:
    return round(size / GIB, 3)


Change = tuple[str, bool]


def _smallest(changes: Iterator[Change]) -> str | None:
    """The first change that fits."""
    return next((text for text, fits in changes if fits), None)


def _train_changes(recipe: TrainRecipe, card: Card, facts: ModelFacts) -> Iterator[Change]:
    for text, update in (*_same_results(recipe, card), *_other_results(recipe)):
        changed = recipe.model_copy(update=update)
        budget = budget_bytes(changed, card)
        yield text, card.holds(_train_at(changed, facts, budget)[0], budget)


Update = tuple[str, dict[str, Any]]


def _same_results(recipe: TrainRecipe, card: Card) -> Iterator[Update]:
    """Changes that alter no result beyond rounding."""
    longest = recipe.max_prompt_length + recipe.max_completion_length
    if recipe.device.memory_gib < card.memory_gib:
        device = recipe.device.model_copy(update={"memory_gib": float(card.memory_gib)})
        yield f"device.memory_gib {card.memory_gib:g}", {"device": device}
    if recipe.micro_batch_tokens is not None and recipe.micro_batch_tokens > longest:
        yield f"micro_batch_tokens {longest}", {"micro_batch_tokens": longest}
    chunk = recipe.logit_chunk_tokens // 2
    while chunk >= SMALLEST_CHUNK:
        yield f"logit_chunk_tokens {chunk}", {"logit_chunk_tokens": chunk}
        chunk //= 2
    if runs_on_vllm(recipe):
        yield "engine transformers", {"engine": "transformers"}
    if _adam_on_a_card(recipe) and recipe.optimizer.name != "adamw_offload":
        yield "optimizer adamw_offload", {"optimizer": _named(recipe, "adamw_offload")}


def _other_results(recipe: TrainRecipe) -> Iterator[Update]:
    """Changes that alter results, the least first: precision, lengths, what is trained."""
    if _adam_on_a_card(recipe) and recipe.optimizer.name != "adamw_8bit":
        yield "optimizer adamw_8bit", {"optimizer": _named(recipe, "adamw_8bit")}
    if recipe.device.kind == "cuda" and recipe.dtype == "float32":
        yield "dtype bfloat16", {"dtype": "bfloat16"}
    for length in _shorter(recipe.max_completion_length):
        yield f"max_completion_length {length}", {"max_completion_length": length}
    if recipe.lora is None:
        plain = _named(recipe, "adamw")
        yield 'lora {"r": 16}', {"lora": Lora(r=16), "optimizer": plain}
        yield 'lora {"r": 16, "quantize": "nf4"}', {"lora": Lora(r=16, quantize="nf4"), "optimizer": plain}
    elif recipe.lora.quantize == "none":
        yield "lora.quantize nf4", {"lora": recipe.lora.model_copy(update={"quantize": "nf4"})}


def _adam_on_a_card(recipe: TrainRecipe) -> bool:
    return recipe.device.kind == "cuda" and recipe.lora is None and recipe.optimizer.name.startswith("adamw")


def _named(recipe: TrainRecipe, name: str) -> Optimizer:
    return recipe.optimizer.model_copy(update={"name": name, "momentum": 0.0})


def _eval_changes(recipe: EvalRecipe, card: Card, facts: ModelFacts) -> Iterator[Change]:
    def tried(text: str, **update: Any) -> Change:
        changed = recipe.model_copy(update=update)
        budget = budget_bytes(changed, card)
        return text, _eval_at(changed, facts, budget)[0].peak <= budget

    if recipe.device.memory_gib < card.memory_gib:
        device = recipe.device.model_copy(update={"memory_gib": float(card.memory_gib)})
        yield tried(f"device.memory_gib {card.memory_gib:g}", device=device)
    if recipe.device.kind == "cuda" and recipe.dtype == "float32":
        yield tried("dtype bfloat16", dtype="bfloat16")
    for length in _shorter(recipe.max_completion_length):
        yield tried(f"max_completion_length {length}", max_completion_length=length)


def _shorter(length: int) -> Iterator[int]:
    """Shorter completions, an eighth of the length less each time, down to the smallest that is worth naming."""
    for eighths in range(7, 0, -1):
        shorter = length * eighths // 8
        if shorter >= SMALLEST_COMPLETION:
            yield shorter
