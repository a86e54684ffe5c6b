"""The policy of a train run: the live model, the optimizer over it, and how both are saved, hashed and restored.

The reference (the base model, frozen) is here too, since the two are always compared. Rollouts and losses are not.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from core.engines.models import (
    WEIGHTS_FILE,
    body_and_head,
    load_model,
    load_tokenizer,
    named_weights,
    save_model,
    weights_sha256,
)
from core.recipes import TrainRecipe
from core.rl.eightbit import AdamW8bit
from core.rl.lean import make_lean
from core.rl.offload import OffloadedAdamW
from core.rl.optim import SGD, AdamW, MasterOptimizer, changed_share
from core.streams import stream_seed
from core.train import checkpoints
from core.train.adapters import Adapters
from core.train.recompute import checkpoint_layers
from core.train.reference import Reference, Resting, WithoutAdapters
from core.train.update import Body, Head


@dataclass(frozen=True)
class Policy:
    """The trained model with its optimizer and its frozen base.

    With ``adapters`` these alone are trained, and the model's effective weights are what is saved, hashed and served.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    optimizer: MasterOptimizer
    body: Body
    head: Head
    reference: Reference
    device: torch.device
    recipe: TrainRecipe
    adapters: Adapters | None = None

    def weights_sha256(self) -> str:
        """Hash of the exact fp32 weights: equal for equal weights, whether or not they are saved."""
        return weights_sha256(self.optimizer.masters if self.adapters is None else self._exact(self.adapters))

    def rollout_weights(self) -> Mapping[str, Tensor]:
        """The weights as rollouts use them, in the model's dtype, under the names of the start model's files.

        With all parameters trained these are the live tensors. Adapters are merged in when a tensor is asked for.
        """
        if self.adapters is None:
            return named_weights(self.model)
        dtype = self.head.weight_VH.dtype
        return self.adapters.merged(self.optimizer.parameters, dtype)

    @torch.no_grad()
    def changed_share(self) -> float:
        """Share of the model's weights, as the forward pass uses them, that differ from the base."""
        if self.adapters is not None:
            return self.adapters.changed(self.optimizer.parameters) / self.adapters.elements()
        reference = {name: self.reference.weight(name) for name in self.optimizer.parameters}
        return changed_share(self.optimizer.parameters, reference).share

    def save(
        self,
        directory: Path,
        *,
        step: int,
        weights_sha256: str,
        with_optimizer: bool,
        state: Mapping[str, Any],
        beside: Callable[[Path], None] = lambda folder: None,
    ) -> checkpoints.WrittenCheckpoint:
        """Write a checkpoint folder; its weights are the fp32 masters, adapters merged in and beside them.

        ``beside`` may write further files into the folder.
        """

        def save_files(folder: Path) -> None:
            if self.adapters is None:
                save_model(self.model, folder, torch.float32, masters=self.optimizer.masters)
            else:
                save_model(self.model, folder, torch.float32, weights=self._exact(self.adapters))
                self.adapters.write(folder, self.optimizer.masters)
            self.tokenizer.save_pretrained(str(folder))
            beside(folder)

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
        masters = _masters(directory, self.optimizer) if self.adapters is None else self.adapters.read(directory)
        self.optimizer.load_masters(masters)
        self.optimizer.load_state_tensors(checkpoints.read_optimizer(directory))

    @contextmanager
    def training(self, step: int) -> Iterator[None]:
        """Training mode for the updates of one step; generation and scoring run in evaluation mode.

        Dropout of adapters draws from a stream that the step names.
        """
        if self.adapters is not None:
            torch.manual_seed(stream_seed(self.recipe.seed, "dropout", step))
        self.model.train()
        try:
            yield
        finally:
            self.model.train(False)

    def _exact(self, adapters: Adapters) -> dict[str, Tensor]:
        masters = {name: value.detach().cpu() for name, value in self.optimizer.masters.items()}
        return {name: value.cpu() for name, value in adapters.merged(masters, torch.float32).items()}


def load_policy(
    folder: Path,
    recipe: TrainRecipe,
    device: torch.device,
    *,
    checkpointed_layers: int | None = None,
    base: str | None = None,
) -> Policy:
    """Load the base model, with a frozen copy where all parameters are trained, and build the recipe's optimizer.

    On a card the first ``checkpointed_layers`` layers (None: all) are run again in the backward instead of kept. ``base`` is
    what the adapters' file calls the model of ``folder`` (None: the recipe's model).
    """
    dtype = torch.float32 if recipe.dtype == "float32" else torch.bfloat16
    adapters, frozen = None, None
    if recipe.lora is None:
        model = load_model(folder, dtype, device)
        model.requires_grad_(True)
        frozen = load_model(folder, dtype, "cpu")
    else:
        # Where it is to be stored in four bits, the whole model need not fit the card.
        model = load_model(folder, dtype, "cpu" if recipe.lora.quantize == "nf4" else device)
        adapters = Adapters(model, recipe.lora, device, seed=recipe.seed, base=base or recipe.model)
    body, weight_VH, tied = body_and_head(model)
    if device.type == "cuda":
        for network in (model, frozen):
            if network is not None:
                make_lean(network)
        checkpoint_layers(model, checkpointed_layers, random=recipe.lora is not None and recipe.lora.dropout > 0)
    head = Head(weight_VH, recipe.temperature, recipe.logit_chunk_tokens, tied)
    return Policy(
        model=model,
        tokenizer=load_tokenizer(folder),
        optimizer=_optimizer(model, recipe),
        body=body,
        head=head,
        reference=_reference(frozen, adapters, body, head, device),
        device=device,
        recipe=recipe,
        adapters=adapters,
    )


def _reference(
    frozen: PreTrainedModel | None, adapters: Adapters | None, body: Body, head: Head, device: torch.device
) -> Reference:
    if adapters is not None:
        return WithoutAdapters(body, head, adapters.disabled)
    assert frozen is not None
    own_body, weight_VH, _ = body_and_head(frozen)
    return Resting(frozen, own_body, Head(weight_VH, head.temperature, head.chunk), device)


def _optimizer(model: PreTrainedModel, recipe: TrainRecipe) -> MasterOptimizer:
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    if recipe.optimizer.name == "sgd":
        return SGD(named, lr=recipe.learning_rate, momentum=recipe.optimizer.momentum, weight_decay=recipe.weight_decay)
    kinds: dict[str, type[AdamW]] = {"adamw": AdamW, "adamw_offload": OffloadedAdamW, "adamw_8bit": AdamW8bit}
    return kinds[recipe.optimizer.name](
        named,
        lr=recipe.learning_rate,
        betas=(recipe.adam_beta1, recipe.adam_beta2),
        eps=recipe.adam_eps,
        weight_decay=recipe.weight_decay,
    )


def _masters(directory: Path, optimizer: MasterOptimizer) -> dict[str, Tensor]:
    weights = load_file(directory / WEIGHTS_FILE)
    return {name: weights[name] for name in optimizer.masters}
