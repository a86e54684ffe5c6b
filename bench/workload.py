"""What the trainer's benchmarks run: a model from a config, one sequence, and the loss in the ways that people take it.

No file and no hub: weights are random, so figures say what a step costs and nothing about learning. Every way of taking the
loss is a function of the same :class:`Case` that leaves the gradient of every weight in ``.grad``.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from core.rl.chunked import backward_hidden, chunked_backward
from core.rl.embedding import scattered_embedding
from core.rl.lean import make_lean
from core.rl.objective import Objective, TokenTerms
from core.train.recompute import checkpoint_layers

QWEN_1_5B = {
    "vocab_size": 151_936,
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32_768,
    "tie_word_embeddings": True,
    "rope_theta": 1e6,
}


@dataclass(frozen=True)
class Case:
    """One micro-batch of one sequence: every token counts, log-probs of the rollout differ a little from the current."""

    model: PreTrainedModel
    ids_BS: Tensor
    targets_T: Tensor
    old_T: Tensor
    advantage: float = 0.7

    @property
    def tokens(self) -> int:
        return self.targets_T.numel()

    def hidden_BSH(self, embedded: Tensor | None = None) -> Tensor:
        inputs = {"input_ids": self.ids_BS} if embedded is None else {"inputs_embeds": embedded}
        return self.model.model(**inputs, use_cache=False).last_hidden_state


Variant = Callable[[Case], object]


def build_model(*, gradients: bool = True, seed: int = 0) -> PreTrainedModel:
    """The model in bfloat16 on the card, in training mode; with gradient buffers, or frozen."""
    torch.manual_seed(seed)
    with torch.device("cuda"):
        default, _ = torch.get_default_dtype(), torch.set_default_dtype(torch.bfloat16)
        try:
            model = Qwen2ForCausalLM(Qwen2Config(**QWEN_1_5B, attn_implementation="sdpa"))
        finally:
            torch.set_default_dtype(default)
    model.tie_weights()
    for parameter in model.parameters():
        parameter.requires_grad_(gradients)
        parameter.grad = torch.zeros_like(parameter) if gradients else None
    return model.train()


def build_case(model: PreTrainedModel, tokens: int, seed: int = 0) -> Case:
    generator = torch.Generator(device="cuda").manual_seed(seed)
    vocab = model.config.vocab_size
    ids_BS = torch.randint(0, vocab, (1, tokens), device="cuda", generator=generator)
    targets_T = torch.randint(0, vocab, (tokens,), device="cuda", generator=generator)
    old_T = -12.0 + 0.1 * torch.randn(tokens, device="cuda", generator=generator)
    return Case(model, ids_BS, targets_T, old_T)


def eager(variant: Variant) -> Variant:
    """``variant`` with the library's own layers, every one checkpointed."""

    def run(case: Case) -> object:
        for layer in case.model.model.layers:
            vars(layer).pop("forward", None)
        checkpoint_layers(case.model.model)
        return variant(case)

    return run


def lean(variant: Variant, checkpointed: int | None = None) -> Variant:
    """``variant`` with the layers that the trainer runs, the first ``checkpointed`` (None: all) of them checkpointed."""

    def run(case: Case) -> object:
        if "forward" not in vars(case.model.model.layers[0]):
            make_lean(case.model.model)
        checkpoint_layers(case.model.model, checkpointed)
        return variant(case)

    return run


def _body_only(case: Case) -> None:
    """The body alone: forward, and backward from a given gradient."""
    hidden_BSH = case.hidden_BSH()
    hidden_BSH.backward(torch.full_like(hidden_BSH, 1e-5))


floor = eager(_body_only)


def _grpo(logp_T: Tensor, case: Case) -> Tensor:
    ratio_T = torch.exp(logp_T - case.old_T)
    clipped_T = ratio_T.clamp(0.8, 1.28)
    return -torch.minimum(ratio_T * case.advantage, clipped_T * case.advantage).mean()


@eager
def full_logits(case: Case) -> Tensor:
    """All logits in fp32, one log-softmax over them."""
    logits_TV = case.model.lm_head(case.hidden_BSH())[0].float()
    logp_T = logits_TV.log_softmax(-1).gather(1, case.targets_T[:, None])[:, 0]
    loss = _grpo(logp_T, case)
    loss.backward()
    return loss.detach()


@eager
def selective(case: Case) -> Tensor:
    """All logits in bf16, a log-softmax per sequence that keeps only the chosen entries, as TRL does for bf16."""
    logits_BTV = case.model.lm_head(case.hidden_BSH())
    rows = [
        functional.log_softmax(logits_TV, dim=-1).gather(-1, case.targets_T[:, None])[:, 0] for logits_TV in logits_BTV
    ]
    loss = _grpo(torch.stack(rows)[0].float(), case)
    loss.backward()
    return loss.detach()


def liger() -> Variant:
    """Liger's fused linear GRPO loss, as TRL calls it."""
    from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss

    loss_module = LigerFusedLinearGRPOLoss(
        beta=0.0, use_ref_model=False, epsilon_low=0.2, epsilon_high=0.28, loss_type="grpo", temperature=1.0
    )

    def run(case: Case) -> Tensor:
        loss, _ = loss_module(
            _input=case.hidden_BSH(),
            lin_weight=case.model.lm_head.weight,
            selected_token_ids=case.targets_T[None],
            attention_mask=torch.ones_like(case.targets_T)[None],
            advantages=torch.full((1,), case.advantage, device="cuda"),
            old_per_token_logps=case.old_T[None],
        )
        loss.backward()
        return loss.detach()

    return eager(run)


def chunked(chunk: int) -> Variant:
    """Ours: chunks of ``chunk`` tokens through the head, its gradient and the embedding's in one buffer."""

    def run(case: Case) -> Tensor:
        weight_VH = case.model.lm_head.weight
        hidden_BSH = case.hidden_BSH(scattered_embedding(weight_VH, case.ids_BS, weight_VH.grad))
        terms = TokenTerms(
            weight_T=torch.full((case.tokens,), 1.0 / case.tokens),
            advantage_T=torch.full((case.tokens,), case.advantage),
            logp_old_T=case.old_T,
        )
        result = chunked_backward(
            hidden_BSH.detach()[0],
            weight_VH,
            case.targets_T,
            terms,
            Objective(dual_clip=None),
            chunk=chunk,
            weight_grad_VH=weight_VH.grad,
        )
        backward_hidden(hidden_BSH, result.grad_hidden_TH)
        return result.loss_sum

    return run
