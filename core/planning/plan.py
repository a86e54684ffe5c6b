"""Does a recipe fit a card, with which micro-batch, and which smallest change would make it fit.

A change is one field of the recipe. They are tried in the order of how little they alter the experiment: first those that
change no result (micro-batch, chunk, offloading), then precision of the moments, then lengths, then adapters.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.planning.cost import disk_bytes
from core.planning.facts import PlanError, model_facts
from core.planning.memory import GIB, PROCESS_BYTES, Memory, eval_memory, train_memory
from core.recipes.analysis import AnalysisRecipe
from core.recipes.catalogue import ModelFacts
from core.recipes.evaluation import EvalRecipe
from core.recipes.train import Lora, TrainRecipe

LARGEST_MICRO_BATCH = 16_384  # padded tokens; larger ones are not faster
HEADROOM = 0.9  # share of the budget that a chosen micro-batch may fill, since some components are estimates
SMALLEST_CHUNK = 64
SMALLEST_COMPLETION = 16


@dataclass(frozen=True)
class Card:
    """What a worker runs on: a card's memory, or the host's for a CPU worker (GiB)."""

    memory_gib: float
    name: str


@dataclass(frozen=True)
class Plan:
    """Predicted memory (GiB) by component, and whether it fits.

    ``peak_gib`` is what always exists plus the largest phase, so it is less than the sum of the components.
    ``smallest_change`` is one recipe field and its value, None when the recipe fits or no single change is enough.
    """

    fits: bool
    components_gib: dict[str, float]
    peak_gib: float
    budget_gib: float
    host_gib: float
    pinned_gib: float
    disk_gib: float
    smallest_change: str | None
    micro_batch_tokens: int | None
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
            return _plan_analysis(card, facts)


def train_budget(recipe: TrainRecipe | EvalRecipe, card: Card) -> int:
    """Bytes the run may use."""
    return int(min(card.memory_gib, recipe.device.memory_gib) * GIB)


def micro_batch_tokens(recipe: TrainRecipe, facts: ModelFacts, budget: int) -> int:
    """Padded tokens per micro-batch: the recipe's, else as many whole longest sequences as fit.

    A sequence longer than the recipe's value has a micro-batch of its own, so less than one longest sequence is never
    planned for.
    """
    longest = recipe.max_prompt_length + recipe.max_completion_length
    if recipe.micro_batch_tokens is not None:
        return max(recipe.micro_batch_tokens, longest)
    rows = max(1, min(LARGEST_MICRO_BATCH // longest, recipe.prompts_per_update * recipe.num_generations))
    while rows > 1 and train_memory(recipe, facts, rows * longest).peak > HEADROOM * budget:
        rows -= 1
    return rows * longest


def _plan_train(recipe: TrainRecipe, card: Card, facts: ModelFacts) -> Plan:
    budget = train_budget(recipe, card)
    tokens = micro_batch_tokens(recipe, facts, budget)
    memory = train_memory(recipe, facts, tokens)
    fits = memory.peak <= budget
    return _result(
        memory,
        budget,
        change=None if fits else _smallest(_train_changes(recipe, card, facts)),
        disk=disk_bytes(recipe, facts),
        micro=tokens,
        layers=facts.layers if recipe.device.kind == "cuda" else 0,
    )


def _plan_eval(recipe: EvalRecipe, card: Card, facts: ModelFacts) -> Plan:
    budget = train_budget(recipe, card)
    memory = eval_memory(recipe, facts)
    fits = memory.peak <= budget
    return _result(memory, budget, change=None if fits else _smallest(_eval_changes(recipe, card, facts)))


def _plan_analysis(card: Card, facts: ModelFacts) -> Plan:
    """One tensor of every checkpoint in turn: its fp32 values and five fp64 sums per element of the largest tensor."""
    largest = max(facts.embedding_parameters, facts.hidden * facts.intermediate)
    memory = Memory({"process": PROCESS_BYTES}, {"streaming": {"tensor": 2 * 4 * largest, "sums": 5 * 8 * largest}})
    return _result(memory, int(card.memory_gib * GIB))


def _result(
    memory: Memory, budget: int, *, change: str | None = None, disk: int = 0, micro: int | None = None, layers: int = 0
) -> Plan:
    components = dict(memory.static)
    slack = 0
    for phase in memory.phases.values():
        slack = max(slack, phase.get("allocator_slack", 0))
        components.update({name: size for name, size in phase.items() if name != "allocator_slack"})
    components["allocator_slack"] = slack
    return Plan(
        fits=memory.peak <= budget,
        components_gib={name: _gib(size) for name, size in components.items() if size},
        peak_gib=_gib(memory.peak),
        budget_gib=_gib(budget),
        host_gib=_gib(memory.host),
        pinned_gib=_gib(memory.pinned),
        disk_gib=_gib(disk),
        smallest_change=change,
        micro_batch_tokens=micro,
        checkpointed_layers=layers,
    )


def _gib(size: int) -> float:
    return round(size / GIB, 3)


Change = tuple[str, bool]


def _smallest(changes: Iterator[Change]) -> str | None:
    """The first change that fits."""
    return next((text for text, fits in changes if fits), None)


def _train_changes(recipe: TrainRecipe, card: Card, facts: ModelFacts) -> Iterator[Change]:
    def tried(text: str, **update: Any) -> Change:
        changed = recipe.model_copy(update=update)
        budget = train_budget(changed, card)
        return text, train_memory(changed, facts, micro_batch_tokens(changed, facts, budget)).peak <= budget

    longest = recipe.max_prompt_length + recipe.max_completion_length
    if recipe.device.memory_gib < card.memory_gib:
        device = recipe.device.model_copy(update={"memory_gib": float(card.memory_gib)})
        yield tried(f"device.memory_gib {card.memory_gib:g}", device=device)
    if recipe.micro_batch_tokens is not None and recipe.micro_batch_tokens > longest:
        yield tried(f"micro_batch_tokens {longest}", micro_batch_tokens=longest)
    chunk = recipe.logit_chunk_tokens // 2
    while chunk >= SMALLEST_CHUNK:
        yield tried(f"logit_chunk_tokens {chunk}", logit_chunk_tokens=chunk)
        chunk //= 2
    if recipe.device.kind == "cuda" and recipe.lora is None and recipe.optimizer.name.startswith("adamw"):
        for name in ("adamw_offload", "adamw_8bit"):
            if name != recipe.optimizer.name:
                yield tried(f"optimizer {name}", optimizer=recipe.optimizer.model_copy(update={"name": name}))
    if recipe.device.kind == "cuda" and recipe.dtype == "float32":
        yield tried("dtype bfloat16", dtype="bfloat16")
    for length in _shorter(recipe.max_completion_length):
        yield tried(f"max_completion_length {length}", max_completion_length=length)
    if recipe.lora is None:
        plain = recipe.optimizer.model_copy(update={"name": "adamw"})
        yield tried('lora {"r": 16}', lora=Lora(r=16), optimizer=plain)
        yield tried('lora {"r": 16, "quantize": "nf4"}', lora=Lora(r=16, quantize="nf4"), optimizer=plain)


def _eval_changes(recipe: EvalRecipe, card: Card, facts: ModelFacts) -> Iterator[Change]:
    def tried(text: str, **update: Any) -> Change:
        changed = recipe.model_copy(update=update)
        return text, eval_memory(changed, facts).peak <= train_budget(changed, card)

    if recipe.device.memory_gib < card.memory_gib:
        device = recipe.device.model_copy(update={"memory_gib": float(card.memory_gib)})
        yield tried(f"device.memory_gib {card.memory_gib:g}", device=device)
    size = recipe.batch_size // 2
    while size >= 1:
        yield tried(f"batch_size {size}", batch_size=size)
        size //= 2
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
