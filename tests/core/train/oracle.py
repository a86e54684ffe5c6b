"""One step's first update written down sequence by sequence in float64: whole logits, loops, plain autograd.

Shares no code with core.rl or core.train. Formulas are those of the papers and of verl's ``core_algos.py``.
"""

import math
from dataclasses import dataclass
from statistics import fmean, pvariance, stdev, variance
from typing import Any

import torch


@dataclass(frozen=True)
class Sampled:
    """A sampled completion as the oracle sees it; ``reward`` None has no verdict, ``masked`` is out of the loss."""

    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    reward: float | None
    group: int
    engine_logp: tuple[float, ...]
    masked: bool = False


def token_logp(model: Any, sample: Sampled, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.tensor([sample.prompt + sample.completion])
    logits = model(ids, use_cache=False).logits[0, len(sample.prompt) - 1 : -1] / temperature
    log_p = logits.log_softmax(-1)
    entropy = -(log_p.exp() * log_p).sum(-1)
    return log_p[range(len(sample.completion)), list(sample.completion)], entropy


def kl_of(d: Any, estimator: str) -> Any:
    exp = torch.exp if isinstance(d, torch.Tensor) else math.exp
    return {"k1": lambda: d, "k2": lambda: d * d / 2, "k3": lambda: exp(-d) - 1 + d}[estimator]()


def advantages(samples: list[Sampled], options: dict[str, Any], penalties: list[list[float]]) -> list[list[float]]:
    """One advantage per token of each sample."""
    name = options["name"]
    total = [None if s.reward is None else s.reward - sum(p) for s, p in zip(samples, penalties, strict=True)]
    groups: dict[int, list[float]] = {}
    for sample, value in zip(samples, total, strict=True):
        if value is not None:
            groups.setdefault(sample.group, []).append(value)
    found: list[list[float]] = []
    if name == "reinforce_plus_plus":
        series = []
        for sample, value, less in zip(samples, total, penalties, strict=True):
            if value is None:
                series.append([])
            elif options.get("baseline"):
                series.append([value - fmean(groups[sample.group])] * len(sample.completion))
            else:
                series.append([sample.reward - sum(less[t:]) for t in range(len(less))])
        everything = [x for s, row in zip(samples, series, strict=True) if not s.masked for x in row]
        spread = pvariance(everything) if options.get("variance") == "population" else variance(everything)
        mean, scale = fmean(everything), math.sqrt(spread + 1e-8)
        return [
            [(x - mean) / scale for x in row] or [0.0] * len(s.completion)
            for s, row in zip(samples, series, strict=True)
        ]
    for sample, value in zip(samples, total, strict=True):
        own = groups.get(sample.group, [])
        if value is None or len(own) < 2 or max(own) - min(own) < 1e-12:
            one = 0.0
        elif name == "rloo":
            one = value - (sum(own) - value) / (len(own) - 1)
        elif name == "centered":
            one = value - fmean(own)
        else:
            deviation = {"sample": stdev(own), "population": math.sqrt(pvariance(own)), "none": 1.0}[
                options.get("std", "sample")
            ]
            one = (value - fmean(own)) / (deviation + (0.0 if options.get("std") == "none" else 1e-6))
        found.append([one] * len(sample.completion))
    return found


def first_update(
    model: Any, reference: Any, samples: list[Sampled], options: dict[str, Any], *, temperature: float
) -> torch.Tensor:
    """Loss of a step with a single update, at the weights that sampled."""
    kl = {"coef": 0.0, "estimator": "k3", "in_reward": False} | options.get("kl", {})
    scored = [token_logp(model, sample, temperature) for sample in samples]
    with torch.no_grad():
        anchors = [token_logp(reference, sample, temperature)[0] for sample in samples]
    penalties = [
        [
            kl["coef"] * kl_of(float(a - b), kl["estimator"]) if kl["in_reward"] else 0.0
            for a, b in zip(logp.detach(), ref, strict=True)
        ]
        for (logp, _), ref in zip(scored, anchors, strict=True)
    ]
    weights = advantages(samples, options, penalties)
    correction = {"mode": "none", "level": "token", "cap": 2.0} | options.get("importance_correction", {})
    rows = []
    for sample, (logp, entropy), ref, advantage in zip(samples, scored, anchors, weights, strict=True):
        if sample.masked or sample.reward is None:
            continue
        gaps = [float(a) - b for a, b in zip(logp.detach(), sample.engine_logp, strict=True)]
        losses = []
        for t in range(len(sample.completion)):
            log_ratio = logp - logp.detach()
            ratio = torch.exp(log_ratio.mean() if options["name"] == "gspo" else log_ratio[t])
            loss = -ratio * advantage[t]  # at ratio 1 no clip binds
            if correction["mode"] != "none":
                weight = math.exp(sum(gaps) if correction["level"] == "sequence" else gaps[t])
                if weight > correction["cap"]:
                    weight = correction["cap"] if correction["mode"] == "truncate" else 0.0
                loss = loss * weight
            if kl["coef"] and not kl["in_reward"]:
                loss = loss + kl["coef"] * kl_of(logp[t] - ref[t], kl["estimator"])
            losses.append(loss - options.get("entropy_coef", 0.0) * entropy[t])
        rows.append(losses)
    match options.get("aggregation", "seq_mean_token_mean"):
        case "token_mean":
            return sum(x for row in rows for x in row) / sum(len(row) for row in rows)
        case "seq_mean_token_sum_norm":
            return sum(x for row in rows for x in row) / options["norm_length"] / len(rows)
        case _:
            return sum(sum(row) / len(row) for row in rows) / len(rows)
