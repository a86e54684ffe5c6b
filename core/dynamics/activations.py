"""Linearity of hidden states after every layer, and what first-order terms make of a linear layer's change (paper: B.2, 5.3).

Hidden states are followed at a seeded sample of (token, dimension) pairs per layer: all of them would be one more copy of the
activations per checkpoint. For the decomposition each linear layer's inputs are kept at a seeded sample of tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from core.dynamics.chance import linearity_of_paths
from core.dynamics.modules import places
from core.dynamics.nulls import Drive
from core.dynamics.probes import ProbeSequence
from core.dynamics.scoring import ProbeBatch, along, check_vocabulary, checkpoint_model, decoder_layers, probe_batches
from core.dynamics.tables import rows_as_columns
from core.dynamics.tensor_file import Array, TrajectoryError
from core.dynamics.trajectory import Point
from core.engines.models import body_and_head
from core.streams import stream_seed

SAMPLE = 4096
_TOKENS = 64
EMBEDDING = "embedding"

OnPoint = Callable[[int, int], None]


def hidden_paths(
    points: Sequence[Point],
    probes: Sequence[ProbeSequence],
    *,
    sample: int,
    seed: int,
    dtype: torch.dtype,
    device: torch.device,
    progress: OnPoint,
) -> tuple[list[str], Array]:
    """Return the layers' names and [L, K, S] sampled numbers: embedding, then each block's output, at each checkpoint."""
    count = sum(len(one.completion_ids) for one in probes)
    batches = probe_batches(probes, device)
    rng = np.random.default_rng(stream_seed(seed, "activations", "sample"))
    tokens_S = torch.from_numpy(rng.integers(count, size=sample))
    # Drawn as a share of the width, which is known when the first model is there.
    uniform_S = rng.random(sample)
    names: list[str] = []

    def measure(model: PreTrainedModel, point: Point) -> Array:
        check_vocabulary(model, point, probes)
        dims_S = torch.from_numpy((uniform_S * body_and_head(model)[1].shape[1]).astype(np.int64))
        found, values_LS = _hidden_sample(model, batches, tokens_S, dims_S)
        names[:] = found
        return values_LS

    rows = along(points, measure, dtype=dtype, device=device, progress=progress)
    return names, np.stack(rows, axis=1)


@torch.no_grad()
def _hidden_sample(
    model: PreTrainedModel, batches: Sequence[ProbeBatch], tokens_S: Tensor, dims_S: Tensor
) -> tuple[list[str], Array]:
    """Run the body with a hook per layer that keeps the sampled numbers only."""
    layers = decoder_layers(model)
    names = [EMBEDDING, *(str(at) for at in range(len(layers)))]
    values_LS = np.zeros((len(names), len(tokens_S)))
    body = body_and_head(model)[0]
    for batch in batches:
        # Where in this batch each sampled token is; -1 where it is in another.
        place_of = torch.full((int(batch.columns_T.max()) + 1,), -1, dtype=torch.long, device=batch.places_T.device)
        place_of[batch.columns_T] = batch.places_T
        inside_S = torch.tensor([int(token) < len(place_of) and int(place_of[token]) >= 0 for token in tokens_S])
        if not inside_S.any():
            continue
        rows = place_of[tokens_S[inside_S].to(place_of.device)]
        dims = dims_S[inside_S].to(rows.device)

        def keep(
            layer: int, hidden_BSH: Tensor, rows: Tensor = rows, dims: Tensor = dims, at: Tensor = inside_S
        ) -> None:
            values_LS[layer, at.numpy()] = hidden_BSH.flatten(0, 1)[rows, dims].double().cpu().numpy()

        with _hooked(model, layers, keep):
            body(input_ids=batch.input_ids_BS, use_cache=False)
    return names, values_LS


@contextmanager
def _hooked(model: PreTrainedModel, layers: nn.ModuleList, keep: Callable[[int, Tensor], None]) -> Iterator[None]:
    def hook(layer: int) -> Callable[[nn.Module, Any, Any], None]:
        # Blocks of some models return a tuple that begins with the hidden states.
        return lambda module, inputs, output: keep(layer, output[0] if isinstance(output, tuple) else output)

    embedding = model.get_input_embeddings()
    handles = [embedding.register_forward_hook(hook(0))]
    handles += [block.register_forward_hook(hook(at + 1)) for at, block in enumerate(layers)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def activation_result(
    names: Sequence[str],
    values_LKS: Array,
    steps: tuple[int, ...],
    *,
    threshold: float,
    seed: int,
    drive: Drive | None,
) -> dict[str, Any]:
    """Measure all layers together and each by itself; every layer has the excess over the same null."""
    all_KN = np.concatenate(list(values_LKS), axis=1)
    result, _ = linearity_of_paths(
        all_KN[1:] - all_KN[0], steps, noun="activations", threshold=threshold, seed=seed, drive=drive
    )
    layers = []
    for name, values_KS in zip(names, values_LKS, strict=True):
        own, _ = linearity_of_paths(
            values_KS[1:] - values_KS[0], steps, noun="activations", threshold=threshold, seed=seed, drive=drive
        )
        layers.append(
            {
                "layer": name,
                "excess": own["excess"],
                "chance_band": own["chance_band"],
                **{
                    key: own["r2"][key] for key in ("elements", "constant", "mean", "q1", "median", "q3", "share_above")
                },
            }
        )
    return result | {"layers": layers}


# ---- the decomposition ------------------------------------------------------------------------------------------


def first_order_result(
    points: Sequence[Point],
    probes: Sequence[ProbeSequence],
    *,
    seed: int,
    dtype: torch.dtype,
    device: torch.device,
    progress: OnPoint,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split each linear layer's output change between the first and the last checkpoint into its three terms.

    With y = W x: dy = W0 dx + dW x0 + dW dx. Sizes are norms over outputs at each sampled token, relative to |dy|.
    """
    first, last = points[0], points[-1]
    count = sum(len(one.completion_ids) for one in probes)
    rng = np.random.default_rng(stream_seed(seed, "activations", "tokens"))
    chosen = sorted(rng.choice(count, size=min(_TOKENS, count), replace=False).tolist())
    batches = probe_batches(probes, device)
    progress(0, 2)
    with checkpoint_model(first, dtype, device) as base, checkpoint_model(last, dtype, device) as final:
        check_vocabulary(base, first, probes)
        check_vocabulary(final, last, probes)
        before, after = _linears(base), _linears(final)
        if before.keys() != after.keys():
            raise TrajectoryError(
                "different_tensors", f"{last.folder.name} has other linear layers than {first.folder.name}"
            )
        inputs0 = _inputs(base, before, batches, chosen)
        progress(1, 2)
        inputs1 = _inputs(final, after, batches, chosen)
        rows = [_terms(name, before[name].weight, after[name].weight, inputs0[name], inputs1[name]) for name in inputs0]
    progress(2, 2)
    where = places([f"{row['name']}.weight" for row in rows])
    for row in rows:
        place = where[f"{row['name']}.weight"]
        row |= {"layer": place.layer, "module": place.module}
    medians = {key: float(np.median([row[key]["median"] for row in rows])) for key in TERMS}
    changed = [row for row in rows if row["output_change"] > 0]
    statement = (
        f"Between steps {first.step} and {last.step} the median linear layer's output change is {_percent(medians['w0_dx'])} "
        f"of its size by W0 dx, {_percent(medians['dw_x0'])} by dW x0 and {_percent(medians['dw_dx'])} by dW dx "
        f"({len(chosen)} tokens, {len(changed)} of {len(rows)} layers changed)."
    )
    result = {
        "statement": statement,
        "steps": [first.step, last.step],
        "tokens": len(chosen),
        "medians": medians,
        "modules": rows,
        "unit_of_claim": "run",
        "note": "sizes are norms relative to |dy|; the three terms add up to dy, their sizes need not add up to 1",
    }
    flat = [
        {"name": row["name"], "layer": row["layer"], "module": row["module"], "output_change": row["output_change"]}
        | {f"{key}_{part}": row[key][part] for key in TERMS for part in ("q1", "median", "q3")}
        for row in rows
    ]
    return result, rows_as_columns(flat)


TERMS = ("w0_dx", "dw_x0", "dw_dx")


def _linears(model: PreTrainedModel) -> dict[str, nn.Linear]:
    """The linear layers of the blocks; the head is the tokens' matter."""
    body = body_and_head(model)[0]
    if not isinstance(body, nn.Module):
        raise TypeError("the body is no module")
    return {name: module for name, module in body.named_modules() if isinstance(module, nn.Linear)}


@torch.no_grad()
def _inputs(
    model: PreTrainedModel, linears: dict[str, nn.Linear], batches: Sequence[ProbeBatch], chosen: Sequence[int]
) -> dict[str, Tensor]:
    """Return the inputs [N, in] of every linear layer at the chosen tokens, on the host. Experts see tokens in other orders."""
    body = body_and_head(model)[0]
    kept: dict[str, list[Tensor]] = {name: [] for name in linears}
    for batch in batches:
        mine = torch.isin(batch.columns_T.cpu(), torch.tensor(chosen))
        rows = batch.places_T[mine.to(batch.places_T.device)]
        positions = batch.input_ids_BS.numel()

        def keep(name: str, rows: Tensor = rows, positions: int = positions) -> Callable[[nn.Module, Any], None]:
            def hook(module: nn.Module, inputs: Any) -> None:
                flat_PH = inputs[0].reshape(-1, inputs[0].shape[-1])
                if flat_PH.shape[0] == positions:
                    kept[name].append(flat_PH[rows].float().cpu())

            return hook

        handles = [module.register_forward_pre_hook(keep(name)) for name, module in linears.items()]
        try:
            body(input_ids=batch.input_ids_BS, use_cache=False)
        finally:
            for handle in handles:
                handle.remove()
    return {name: torch.cat(parts) for name, parts in kept.items() if parts}


@torch.no_grad()
def _terms(name: str, weight0: Tensor, weight1: Tensor, x0_NH: Tensor, x1_NH: Tensor) -> dict[str, Any]:
    w0, dw = weight0.double().cpu(), weight1.double().cpu() - weight0.double().cpu()
    x0, dx = x0_NH.double(), x1_NH.double() - x0_NH.double()
    parts = {"w0_dx": dx @ w0.T, "dw_x0": x0 @ dw.T, "dw_dx": dx @ dw.T}
    change = (x0 + dx) @ (w0 + dw).T - x0 @ w0.T
    size_N = change.norm(dim=1)
    moved = size_N > 0
    row: dict[str, Any] = {"name": name, "output_change": float(size_N.mean())}
    for key, part in parts.items():
        share_N = part.norm(dim=1)[moved] / size_N[moved]
        q1, median, q3 = np.quantile(share_N.numpy(), [0.25, 0.5, 0.75]) if len(share_N) else (0.0, 0.0, 0.0)
        row[key] = {"q1": float(q1), "median": float(median), "q3": float(q3)}
    return row


def _percent(value: float) -> str:
    return f"{100 * value:.2g} %"
