"""Probes: the fixed token sequences by which outputs are followed through training.

They are sampled once, from the first checkpoint, as evaluations are (paper: B.2), or given as token ids. Sampling seeds are
streams of (suite, item, sample), so a later attempt gets the same probes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from core.dynamics.target import Target
from core.dynamics.tensor_file import TrajectoryError
from core.engines.base import Request, SamplingParams
from core.engines.models import ModelError, load_model, load_tokenizer, stop_token_ids
from core.engines.prompts import PromptError, PromptSpec, render
from core.engines.transformers_engine import TransformersEngine
from core.jobs import RunContext, UserError
from core.prespec.environment import HELDOUT, environment_of
from core.recipes.analysis import Probe
from core.recipes.sources import HOLDOUT
from core.store import prespecs, runs
from core.streams import stream, stream_seed
from core.tasks.items import Item, ItemError, ItemSet
from core.tasks.sources import load_items, load_suite_items
from core.tasks.splits import split_holdout

_BATCH = 32


@dataclass(frozen=True)
class ProbeSequence:
    """One sequence: the tokens of ``completion_ids`` are measured. ``item`` and ``sample`` say where it is from."""

    item: str
    sample: int
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]


OnProbes = Callable[[int, int], None]


def make_probes(
    context: RunContext, target: Target, probe: Probe, *, seed: int, device: torch.device, progress: OnProbes
) -> list[ProbeSequence]:
    """Return the probes' sequences; raises :class:`UserError` where items or prompts cannot be used."""
    if probe.token_ids is not None:
        return [
            ProbeSequence(f"given-{at}", 0, tuple(one.prompt_ids), tuple(one.completion_ids))
            for at, one in enumerate(probe.token_ids)
        ]
    if not target.points:
        raise TrajectoryError("too_few_checkpoints", f"{target.label} has no checkpoint to sample probes from")
    try:
        items = _drawn(_items(context, target, probe.suite), probe.items, seed)
        return _sample(target, items, probe, seed=seed, device=device, progress=progress)
    except ItemError as problem:
        raise UserError("unusable_data", str(problem)) from problem
    except PromptError as problem:
        raise UserError("unusable_prompt", str(problem)) from problem
    except ModelError as problem:
        raise TrajectoryError("damaged_checkpoint", str(problem)) from problem


def _drawn(items: ItemSet, count: int, seed: int) -> Sequence[Item]:
    """Draw without replacement by the seed; all of them where there are no more."""
    if count >= len(items):
        return items.items
    return stream(seed, "probe", "items", items.name).sample(list(items.items), count)


def _sample(
    target: Target, items: Sequence[Item], probe: Probe, *, seed: int, device: torch.device, progress: OnProbes
) -> list[ProbeSequence]:
    folder = target.points[0].folder
    model, tokenizer = load_model(folder, torch.float32, device), load_tokenizer(folder)
    spec = PromptSpec(
        system=target.prompt.system,
        suffix=target.prompt.suffix,
        template_kwargs=dict(target.prompt.template_kwargs),
        prefill=target.prompt.prefill,
        stop=tuple(target.prompt.stop),
    )
    engine = TransformersEngine(model, tokenizer)
    params = SamplingParams(
        temperature=probe.temperature,
        top_p=probe.top_p,
        max_tokens=probe.max_completion_length,
        stop_token_ids=stop_token_ids(model, tokenizer),
        stop=spec.stop,
    )
    asked = [
        (item, sample, render(tokenizer, item.prompt, spec).token_ids) for item in items for sample in range(probe.n)
    ]
    found: list[ProbeSequence] = []
    for start in range(0, len(asked), _BATCH):
        progress(start, len(asked))
        batch = asked[start : start + _BATCH]
        requests = [
            Request(prompt, stream_seed(seed, "probe", probe.suite, item.id, sample)) for item, sample, prompt in batch
        ]
        for (item, sample, prompt), completion in zip(batch, engine.generate(requests, params), strict=True):
            found.append(ProbeSequence(item.id, sample, tuple(prompt), completion.token_ids))
    engine.close()
    return [one for one in found if one.completion_ids]


def _items(context: RunContext, target: Target, suite: str) -> ItemSet:
    if suite != HOLDOUT:
        return load_suite_items(suite, context.settings.data_dir)
    trained = target.trained
    if trained is None or trained.data.holdout == 0:
        raise UserError("no_holdout", f"{target.label} has no held-out items; name a suite for the probe")
    data = trained.data
    items = load_items(data.dataset, data.split, data.options, context.settings.data_dir, seed=trained.seed)
    heldout = split_holdout(items, data.holdout, trained.seed).heldout
    with context.db.read() as session:
        frozen = runs.get(session, target.run_id).prespecification_id
        stated = environment_of(prespecs.get(session, frozen).amendments) if frozen else None
    if stated is not None and stated["data"][HELDOUT]["sha256"] != heldout.sha256:
        raise UserError(
            "data_changed",
            f"the held-out items of {target.label}, drawn again from {data.dataset}, are not those that it held out; "
            "put the data back as it was, or name another suite for the probe",
        )
    return heldout
