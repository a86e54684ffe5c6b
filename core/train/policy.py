"""The policy of a train run: the live model, the optimizer over it, and how both are saved, hashed and restored.

The reference (the base model, frozen) is here too, since the two are always compared. Rollouts and losses are not.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from core.engines.models import WEIGHTS_FILE, body_and_head, load_model, load_tokenizer, save_model, weights_sha256
from core.recipes import TrainRecipe
from core.rl.offload import OffloadedAdamW
from core.rl.optim import SGD, AdamW, MasterOptimizer, changed_share
from core.train import checkpoints
from core.train.lean import make_lean
from core.train.recompute import checkpoint_layers
from core.train.update import Body, Head


@dataclass(frozen=True)
class Policy:
    """The trained model with its optimizer and its frozen base. All three stay on one device for the whole run."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    optimizer: MasterOptimizer
    reference: PreTrainedModel
    body: Body
    head: Head
    reference_body: Body
    reference_head: Head
    device: torch.device

    def weights_sha256(self) -> str:
        """Hash of the fp32 masters: equal for equal weights, whether or not they are saved."""
        return weights_sha256(self.optimizer.masters)

    def changed_share(self) -> float:
        """Share of weights, as the forward pass uses them, that differ from the base."""
        return changed_share(self.optimizer.parameters, dict(self.reference.named_parameters())).share

    def save(
        self, directory: Path, *, step: int, weights_sha256: str, with_optimizer: bool, state: Mapping[str, Any]
    ) -> checkpoints.WrittenCheckpoint:
        """Write a checkpoint folder; its weights are the fp32 masters."""

        def save_files(folder: Path) -> None:
            save_model(self.model, folder, torch.float32, masters=self.optimizer.masters)
            self.tokenizer.save_pretrained(str(folder))

        return checkpoints.write_checkpoint(
            directory,
            step=step,
            weights_sha256=weights_sha256,
            save_model=save_files,
            optimizer_tensors=self.optimizer.state_tensors(masters=False) if with_optimizer else None,
            trainer_state=state,
        )

    def restore(self, directory: Path) -> None:
        """Take weights, moments and update counts from a checkpoint folder that was verified."""
        self.optimizer.load_masters(_masters(directory, self.optimizer))
        self.optimizer.load_state_tensors(checkpoints.read_optimizer(directory))

    @contextmanager
    def training(self) -> Iterator[None]:
        """Training mode for the length of an update; generation and scoring run in evaluation mode."""
        self.model.train()
        try:
            yield
        finally:
            self.model.train(False)


def load_policy(
    folder: Path, recipe: TrainRecipe, device: torch.device, *, checkpointed_layers: int | None = None
) -> Policy:
    """Load the base model twice, trained and frozen, and build the optimizer the recipe names.

    On a card the first ``checkpointed_layers`` layers (None: all) are run again in the backward instead of kept.
    """
    dtype = torch.float32 if recipe.dtype == "float32" else torch.bfloat16
    model = load_model(folder, dtype, device)
    reference = load_model(folder, dtype, device)
    reference.requires_grad_(False)
    model.requires_grad_(True)
    body, weight_VH, tied = body_and_head(model)
    reference_body, reference_VH, _ = body_and_head(reference)
    if device.type == "cuda":
        make_lean(model)
        make_lean(reference)
        checkpoint_layers(model, checkpointed_layers)
    return Policy(
        model=model,
        tokenizer=load_tokenizer(folder),
        optimizer=_optimizer(model, recipe),
        reference=reference,
        body=body,
        head=Head(weight_VH, recipe.temperature, recipe.logit_chunk_tokens, tied),
        reference_body=reference_body,
        reference_head=Head(reference_VH, recipe.temperature, recipe.logit_chunk_tokens),
        device=device,
    )


def _optimizer(model: PreTrainedModel, recipe: TrainRecipe) -> MasterOptimizer:
    named = list(model.named_parameters())
    if recipe.optimizer.name == "sgd":
        return SGD(named, lr=recipe.learning_rate, momentum=recipe.optimizer.momentum, weight_decay=recipe.weight_decay)
    kind = OffloadedAdamW if recipe.optimizer.name == "adamw_offload" else AdamW
    return kind(
        named,
        lr=recipe.learning_rate,
        betas=(recipe.adam_beta1, recipe.adam_beta2),
        eps=recipe.adam_eps,
        weight_decay=recipe.weight_decay,
    )


def _masters(directory: Path, optimizer: MasterOptimizer) -> dict[str, Tensor]:
    weights = load_file(directory / WEIGHTS_FILE)
    return {name: weights[name] for name in optimizer.masters}
