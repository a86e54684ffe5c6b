"""Memory and speed of the trainer's forward and backward on a CUDA card, beside what other trainers do.

Run ``python -m bench.trainer --out FOLDER`` on the card's machine; parts by name: ``--parts losses,kernels``. Writes
``FOLDER/trainer-PART.json`` and prints tables. Liger's column needs ``liger-kernel`` and is left out without it.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch

from bench import measure, workload
from core.train import recompute
from core.train.recompute import Recompute

TOKENS = (2048, 8192, 16_384)
CHUNKS = (512, 1024, 2048)


def losses() -> dict[str, object]:
    """The loss in every way, forward and backward, every layer checkpointed."""
    model = workload.build_model()
    variants: dict[str, workload.Variant] = {
        "full fp32 logits": workload.full_logits,
        "selective bf16": workload.selective,
        "body only (floor)": workload.floor,
        **{f"ours, chunk {chunk}": workload.chunked(chunk) for chunk in CHUNKS},
    }
    if find_spec("liger_kernel"):
        variants["Liger"] = workload.liger()
    rows = {}
    for tokens in TOKENS:
        case = workload.build_case(model, tokens)
        figures = measure.side_by_side({name: partial(variant, case) for name, variant in variants.items()})
        rows[str(tokens)] = figures
        base = figures["body only (floor)"]
        for name in (f"ours, chunk {chunk}" for chunk in CHUNKS):
            ours = figures[name]
            print(
                f"{tokens} {name}: {ours.peak_gib - base.peak_gib:+.2f} GiB, x {ours.median_s / base.median_s:.3f}"
                f" (floor {base.fastest_s:.3f} to {base.slowest_s:.3f})"
            )
    print(measure.table(rows))
    return {tokens: {name: asdict(figure) for name, figure in figures.items()} for tokens, figures in rows.items()} | {
        "agreement": agreement(model)
    }


def agreement(model: workload.PreTrainedModel) -> dict[str, float]:
    """Distance of our gradients and of the bf16 autograd ones from those of fp32 logits, over all weights."""
    case = workload.build_case(model, 2048)

    def gradients(variant: workload.Variant) -> tuple[float, list[torch.Tensor]]:
        for parameter in model.parameters():
            parameter.grad.zero_()
        loss = float(variant(case))
        return loss, [parameter.grad.clone() for parameter in model.parameters()]

    loss, exact = gradients(workload.full_logits)
    found = {}
    for name, variant in {"ours": workload.chunked(512), "selective": workload.selective}.items():
        other_loss, other = gradients(variant)
        distance = sum(float((a.float() - b.float()).square().sum()) for a, b in zip(other, exact, strict=True))
        size = sum(float(b.float().square().sum()) for b in exact)
        found |= {f"{name} loss difference": other_loss - loss, f"{name} gradient distance": (distance / size) ** 0.5}
    print(found)
    return found


def kernels() -> dict[str, object]:
    """Time (ms) of each part of one chunk of the head."""
    from core.rl import fused, head
    from core.rl.objective import Objective, TokenTerms

    shape = workload.QWEN_1_5B
    weight = (torch.randn(shape["vocab_size"], shape["hidden_size"], device="cuda") * 0.02).bfloat16()
    buffer = torch.zeros_like(weight)
    found: dict[str, object] = {}
    for chunk in CHUNKS:
        hidden = torch.randn(chunk, shape["hidden_size"], device="cuda").bfloat16()
        targets = torch.randint(0, shape["vocab_size"], (chunk,), device="cuda")
        terms = TokenTerms(*torch.full((3, chunk), 0.1, device="cuda"))
        logits = head.logits(hidden, weight)
        logp, entropy, norm = fused.statistics(logits, targets, 1.0)
        coef = fused.coefficients(logp, entropy, terms, Objective())[1]
        differentiate = partial(
            fused.gradient_,
            norm_C=norm,
            entropy_C=entropy,
            coef_logp_C=coef,
            coef_entropy_C=None,
            temperature=1.0,
            dtype=torch.bfloat16,
        )
        grad = differentiate(logits.clone(), targets)
        flops = 2 * chunk * weight.numel()
        parts: dict[str, Callable[[], object]] = {
            "logits": partial(head.logits, hidden, weight),
            "statistics": partial(fused.statistics, logits, targets, 1.0),
            "coefficients": partial(fused.coefficients, logp, entropy, terms, Objective()),
            "gradient": partial(differentiate, logits, targets),
            "head gradient": partial(buffer.addmm_, grad.T, hidden),
            "hidden gradient": partial(torch.mm, grad, weight),
        }
        times = {}
        for name, work in parts.items():
            for _ in range(3):
                work()
            times[name] = measure.seconds(lambda work=work: [work() for _ in range(20)]) / 20 * 1e3
        found[str(chunk)] = times
        products = {n: f"{flops / times[n] / 1e9:.0f}" for n in ("logits", "head gradient", "hidden gradient")}
        per_token = sum(times.values()) / chunk * 16_384
        print(chunk, {n: round(t, 3) for n, t in times.items()}, "TFLOP/s", products, f"16k tokens: {per_token:.1f} ms")
    return found


def recomputation() -> dict[str, object]:
    """Our forward and backward with ever fewer layers recomputed, beside the fully checkpointed floor."""
    model = workload.build_model()
    layers = workload.QWEN_1_5B["num_hidden_layers"]
    choices = [Recompute(layers), Recompute(layers - 1), Recompute(layers // 2), Recompute(8), Recompute(0)]
    choices += [Recompute(0, layers), Recompute(0, 20), Recompute(0, 14), Recompute(14, 14)]
    found = {}
    for tokens in (8192, 16_384):
        case = workload.build_case(model, tokens)

        def under(choice: Recompute, variant: workload.Variant, case: workload.Case = case) -> object:
            recompute.apply(model.model, choice)
            return variant(case)

        works = {"floor": partial(under, Recompute(layers), workload.floor)}
        for choice in choices:
            works[f"{choice.full} full, {choice.light} light"] = partial(under, choice, workload.chunked(1024))
        figures = measure.side_by_side(works, runs=3)
        found[str(tokens)] = {name: asdict(figure) for name, figure in figures.items()}
        base = figures["floor"]
        for name, figure in figures.items():
            print(
                tokens,
                name,
                f"{figure.peak_gib:.2f} GiB, {figure.median_s:.3f} s, x {figure.median_s / base.median_s:.3f}",
            )
    return found


PARTS: dict[str, Callable[[], dict[str, object]]] = {
    "kernels": kernels,
    "losses": losses,
    "recomputation": recomputation,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    parser.add_argument("--parts", default=",".join(PARTS), help="comma-separated, of: " + ", ".join(PARTS))
    arguments = parser.parse_args()
    for name in arguments.parts.split(","):
        found = {"environment": measure.environment(), name: PARTS[name]()}
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / f"trainer-{name}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        measure.fresh()


if __name__ == "__main__":
    main()
