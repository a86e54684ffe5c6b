"""An independent float64 reference for the tests of core.rl: whole logits, loops over sequences, plain autograd.

It shares no code with core.rl. Formulas are written from the papers, sequence by sequence and token by token.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

VOCAB, HIDDEN, WIDTH = 23, 6, 9
LENGTHS = (1, 3, 4, 8, 2, 9)


@dataclass
class Batch:
    """Padded rows: inputs predict targets at the same position; padding carries garbage where asked."""

    inputs_BS: Tensor
    targets_BS: Tensor
    mask_BS: Tensor
    advantage_B: Tensor
    old_BS: Tensor
    ref_BS: Tensor
    is_BS: Tensor


@dataclass
class TinyModel:
    """Embedding, one tanh layer, head: enough for a gradient in a body, tied or not."""

    embedding: Tensor
    layer: Tensor
    head: Tensor
    tied: bool = False
    extras: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def new(cls, seed: int = 0, *, tied: bool = False, dtype: torch.dtype = torch.float64) -> "TinyModel":
        generator = torch.Generator().manual_seed(seed)

        def matrix(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()

        embedding = matrix(VOCAB, HIDDEN)
        return cls(embedding, matrix(HIDDEN, HIDDEN), embedding if tied else matrix(VOCAB, HIDDEN), tied)

    def body(self, embedded: Tensor) -> Tensor:
        return torch.tanh(embedded @ self.layer) * 1.5

    def parameters(self) -> dict[str, Tensor]:
        named = {"embedding": self.embedding, "layer": self.layer}
        return named if self.tied else named | {"head": self.head}


def make_batch(seed: int = 1, lengths: tuple[int, ...] = LENGTHS, width: int = WIDTH, spread: float = 0.6) -> Batch:
    """Random batch whose old log-probs are far enough from the model's for every clip to bind somewhere."""
    generator = torch.Generator().manual_seed(seed)
    rows = len(lengths)
    mask = torch.arange(width)[None, :] < torch.tensor(lengths)[:, None]

    def normal() -> Tensor:
        return torch.randn(rows, width, generator=generator, dtype=torch.float64)

    inputs = torch.randint(0, VOCAB, (rows, width), generator=generator)
    targets = torch.randint(0, VOCAB, (rows, width), generator=generator)
    advantage = torch.randn(rows, generator=generator, dtype=torch.float64)
    noise_old, noise_ref, weights = normal() * spread, normal() * spread, normal().abs()
    return Batch(inputs, targets, mask, advantage, noise_old, noise_ref, weights)


def anchor(batch: Batch, model: TinyModel) -> Batch:
    """Turn the noise in old and ref into log-probs near the model's at temperature 0.7."""
    logp = log_probs(model, batch, 0.7)[0].detach()
    batch.old_BS = logp + batch.old_BS
    batch.ref_BS = logp + batch.ref_BS
    return batch


def log_probs(model: TinyModel, batch: Batch, temperature: float) -> tuple[Tensor, Tensor]:
    hidden = model.body(model.embedding[batch.inputs_BS])
    log_p = torch.log_softmax(hidden @ model.head.T / temperature, -1)
    entropy = -(log_p.exp() * log_p).sum(-1)
    return log_p.gather(-1, batch.targets_BS[..., None])[..., 0], entropy


def oracle_loss(model: TinyModel, batch: Batch, options: dict, *, temperature: float, use_is: bool = False) -> Tensor:
    """The update's loss, in loops."""
    logp, entropy = log_probs(model, batch, temperature)
    per_sequence = []
    for b in range(logp.shape[0]):
        positions = batch.mask_BS[b].nonzero()[:, 0].tolist()
        if not positions:
            continue
        a = batch.advantage_B[b]
        log_ratios = [logp[b, t] - batch.old_BS[b, t] for t in positions]
        sequence_ratio = torch.exp(sum(log_ratios) / len(log_ratios))
        losses = []
        for t, log_ratio in zip(positions, log_ratios, strict=True):
            r = sequence_ratio if options.get("kind") == "sequence" else torch.exp(log_ratio)
            loss = -_clip_min(r, a, options)
            if use_is:
                loss = loss * batch.is_BS[b, t]
            d = logp[b, t] - batch.ref_BS[b, t]
            kl = {"k1": d, "k2": d * d / 2, "k3": torch.exp(-d) - 1 + d}[options.get("kl_estimator", "k3")]
            losses.append(loss + options.get("kl_coef", 0.0) * kl - options.get("entropy_coef", 0.0) * entropy[b, t])
        per_sequence.append(losses)
    everything = [loss for losses in per_sequence for loss in losses]
    match options.get("aggregation", "seq_mean_token_mean"):
        case "token_mean":
            return sum(everything) / len(everything)
        case "seq_mean_token_sum_norm":
            return sum(everything) / options["norm_length"] / len(per_sequence)
        case _:
            return sum(sum(losses) / len(losses) for losses in per_sequence) / len(per_sequence)


def _clip_min(r: Tensor, a: Tensor, options: dict) -> Tensor:
    low, high = 1 - options.get("clip_low", 0.2), 1 + options.get("clip_high", 0.28)
    inside = r if low <= r <= high else torch.tensor(low if r < low else high, dtype=torch.float64)
    value = r * a if r * a <= inside * a else inside * a
    dual = options.get("dual_clip", 3.0)
    if dual is not None and a < 0 and value < dual * a:
        value = dual * a
    return value
