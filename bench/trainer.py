"""Memory and speed of the trainer's forward and backward on a CUDA card, beside what other trainers do.

Run ``python -m bench.trainer --out FOLDER`` on the card's machine; parts by name: ``--parts losses,kernels``. Writes
``FOLDER/trainer-PART.json`` and prints tables. Liger's column needs ``liger-kernel`` and is left out without it.
"""

import argparse
import copy
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench import measure, updates, workload

TOKENS = (2048, 8192, 16_384)
CHUNKS = (512, 1024)
FLOOR = "body only (floor)"


def losses() -> dict[str, object]:
    """The loss in every way, forward and backward, every layer checkpointed."""
    model = workload.build_model()
    variants: dict[str, workload.Variant] = {
        "full fp32 logits": workload.full_logits,
        "selective bf16": workload.selective,
        FLOOR: workload.floor,
        **{f"ours, chunk {chunk}, eager layers": workload.eager(workload.chunked(chunk)) for chunk in CHUNKS},
        **{f"ours, chunk {chunk}": workload.lean(workload.chunked(chunk)) for chunk in CHUNKS},
    }
    if find_spec("liger_kernel"):
        variants["Liger"] = workload.liger()
    rows = {}
    for tokens in TOKENS:
        case = workload.build_case(model, tokens)
        rows[str(tokens)] = measure.side_by_side({name: partial(variant, case) for name, variant in variants.items()})
        _against_floor(tokens, rows[str(tokens)])
    print(measure.table(rows))
    return {tokens: {name: asdict(figure) for name, figure in figures.items()} for tokens, figures in rows.items()}


def _against_floor(tokens: int, figures: dict[str, measure.Figure]) -> None:
    base = figures[FLOOR]
    for name, figure in figures.items():
        print(
            f"{tokens} {name}: {figure.peak_gib:.2f} GiB ({figure.peak_gib - base.peak_gib:+.2f}), "
            f"{figure.median_s:.3f} s (x {figure.median_s / base.median_s:.3f})"
        )


def exactness() -> dict[str, object]:
    """Distance of each bf16 way's loss and gradients from those of the same weights in fp32 throughout."""
    model = workload.build_model()
    case = workload.build_case(model, 1024)

    def gradients(variant: workload.Variant, case: workload.Case) -> tuple[float, list[torch.Tensor]]:
        for parameter in case.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        loss = float(variant(case))
        return loss, [parameter.grad.clone() for parameter in case.model.parameters()]

    exact_model = copy.deepcopy(model).float()
    exact_loss, exact = gradients(workload.full_logits, replace(case, model=exact_model))
    size = sum(float(value.square().sum()) for value in exact)
    found: dict[str, object] = {}
    ways = {
        "full fp32 logits": workload.full_logits,
        "selective bf16": workload.selective,
        "ours, eager layers": workload.eager(workload.chunked(1024)),
        "ours": workload.lean(workload.chunked(1024)),
    }
    for name, variant in ways.items():
        loss, other = gradients(variant, case)
        distance = sum(float((a.float() - b).square().sum()) for a, b in zip(other, exact, strict=True))
        found[name] = {"loss_difference": loss - exact_loss, "relative_gradient_distance": (distance / size) ** 0.5}
        print("against fp32:", name, found[name])
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
    found = {}
    for tokens in (8192, 16_384):
        case = workload.build_case(model, tokens)
        works = {FLOOR: partial(workload.floor, case)}
        for count in (layers, layers - 1, 21, 14, 7, 4, 0):
            works[str(count)] = partial(workload.lean(workload.chunked(1024), count), case)
        figures = measure.side_by_side(works)
        _against_floor(tokens, figures)
        found[str(tokens)] = {name: asdict(figure) for name, figure in figures.items()}
    return found


def attention() -> dict[str, object]:
    """Causal attention by each kernel of PyTorch: forward and backward (ms), and the distance from fp32."""
    shape = workload.QWEN_1_5B
    width = shape["hidden_size"] // shape["num_attention_heads"]
    found: dict[str, object] = {}
    for tokens in TOKENS:
        query, key, value = (
            torch.randn(1, heads, tokens, width, device="cuda").bfloat16().requires_grad_()
            for heads in (shape["num_attention_heads"], shape["num_key_value_heads"], shape["num_key_value_heads"])
        )
        grad = torch.randn_like(query)
        for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):

            def forward(backend: SDPBackend = backend, inputs: tuple[torch.Tensor, ...] = (query, key, value)) -> Any:
                with sdpa_kernel(backend):
                    return torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=True, enable_gqa=True)

            try:
                for _ in range(2):
                    forward().backward(grad)
                ahead = measure.seconds(lambda run=forward: [run() for _ in range(10)]) * 100
                both = measure.seconds(lambda run=forward, grad=grad: [run().backward(grad) for _ in range(10)]) * 100
                found[f"{tokens} {backend.name}"] = {"forward_ms": ahead, "backward_ms": both - ahead}
            except RuntimeError as problem:
                found[f"{tokens} {backend.name}"] = str(problem)[:200]
            print(tokens, backend.name, found[f"{tokens} {backend.name}"])
    return found


def profile() -> dict[str, object]:
    """Where the card's time goes in one forward and backward at 8,192 tokens, every layer checkpointed."""
    model = workload.build_model()
    case = workload.build_case(model, 8192)
    work = workload.lean(workload.chunked(1024))
    for _ in range(2):
        work(case)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as recorded:
        work(case)
        torch.cuda.synchronize()
    events = sorted(recorded.key_averages(), key=lambda event: -event.device_time_total)[:25]
    rows = {event.key[:90]: [event.count, round(event.device_time_total / 1e3, 2)] for event in events}
    print("total ms", sum(event.device_time_total for event in recorded.key_averages()) / 1e3)
    for name, (count, time) in rows.items():
        print(f"{time:8.2f} ms {count:5d} {name}")
    return rows


PARTS: dict[str, Callable[[], dict[str, object]]] = {
    "kernels": kernels,
    "losses": losses,
    "recomputation": recomputation,
    "exactness": exactness,
    "step": updates.full_step,
    "planned": updates.planned,
    "layouts": updates.layouts,
    "attention": attention,
    "profile": profile,
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
