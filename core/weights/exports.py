"""The export of one checkpoint: written in the asked form, asked its stored greedy answers again, recorded as a checkpoint.

The row belongs to the analysis run and carries the step of what it was made of, so its files are listed, downloaded and
deleted as those of any checkpoint. A folder in bf16 can be named as a model too; a file or an adapter is to take away.
"""

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from core.engines.lines import FolderWeights
from core.engines.models import load_tokenizer
from core.engines.references import find_model
from core.engines.tensor_writer import Progress
from core.jobs import Outcome, UserError
from core.recipes.weights import Export
from core.store import analyses, checkpoints, greedy
from core.store.greedy import GreedyRecord
from core.store.models import Checkpoint
from core.store.provenance import FORM, SOURCE_RUN
from core.train import checkpoints as folders
from core.weights import verifying
from core.weights.adapter import ADAPTER, own_adapter, write_adapter
from core.weights.gguf_file import FILE, write_gguf
from core.weights.making import Making, add_row, proceed
from core.weights.writing import write_like

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class _Job:
    """What is exported, of which checkpoint; ``base`` is the run's start model where an adapter is asked for."""

    making: Making
    block: Export
    row: Checkpoint
    source: Path
    base: Path | None

    @property
    def device(self) -> torch.device:
        return torch.device("cuda" if self.making.context.device["kind"] == "cuda" else "cpu")

    @property
    def dtype(self) -> str:
        """Of the written weights; a truncated difference would lose its small values in any other than fp32."""
        return "float32" if self.block.format == "adapter" else self.block.dtype

    @property
    def stems_from(self) -> str:
        """The train run behind the checkpoint."""
        run_id: str = self.row.provenance.get(SOURCE_RUN, self.making.run.id)
        return run_id


def export(making: Making, block: Export) -> Outcome:
    """Run the export to its outcome; one that agrees with nothing it was asked fails and leaves no checkpoint."""
    context = making.context
    job = _find(making, block)
    with context.db.read() as session:
        done = checkpoints.at_step(session, context.run_id, block.step)
    if done is not None:  # an earlier attempt wrote it and did not come to tell
        return _told(job, done)
    written, facts = _write(job)
    found = _verified(job, written.directory)
    if found["records"] and not found["prefix"]:
        shutil.rmtree(written.directory)
        message = (
            f"none of {found['records']} greedy answers begins alike through the {block.format} export; it was not kept"
        )
        return Outcome("failed", message, {"category": "system", "code": "export_differs", "message": message})
    row = job.row
    provenance = {
        "kind": "export",
        FORM: block.format,
        "dtype": job.dtype,
        SOURCE_RUN: job.stems_from,
        "of": {"run": making.run.id, "step": row.step, "checkpoint": row.id, "sha256": row.sha256},
        "facts": facts,
        "verified": found,
    }
    return _told(job, add_row(context, written, provenance))


def _find(making: Making, block: Export) -> _Job:
    context = making.context
    with context.db.read() as session:
        row = checkpoints.at_step(session, making.run.id, block.step)
        have = ", ".join(str(one.step) for one in checkpoints.list_(session, making.run.id))
    if row is None:
        raise UserError(
            "unknown_checkpoint", f"run {making.run.id} has no checkpoint of step {block.step}; it has {have}"
        )
    if (form := row.provenance.get(FORM, "hf")) != "hf":
        raise UserError(
            "not_a_model", f"the checkpoint of step {block.step} is an export as {form}; export what it was made of"
        )
    source = context.settings.home / row.path
    folders.verify_checkpoint(source)
    base = None
    if block.format == "adapter":
        base = find_model(context.db, context.settings, context.fence, making.trained.model).folder
    return _Job(making, block, row, source, base)


def _told(job: _Job, row: Checkpoint) -> Outcome:
    making, block = job.making, job.block
    found = row.provenance["verified"]
    statement = f"step {block.step} exported as {block.format}; {_agreed(found)}"
    result = {
        "statement": statement,
        "checkpoint": {"id": row.id, "sha256": row.sha256, "bytes": row.bytes},
        "format": block.format,
        "dtype": job.dtype,
        **row.provenance["facts"],
        "verified": found,
    }
    with making.context.db.fenced(making.context.fence) as session:
        analyses.add(
            session,
            making.context.fence,
            target_run_id=making.run.id,
            name=making.spec.name,
            params=making.spec.model_dump(mode="json", exclude={"name"}),
            result=result,
        )
    return Outcome("succeeded", statement)


def _agreed(found: dict[str, Any]) -> str:
    if not found["records"]:
        return "no greedy answer was there to ask again"
    return f"{found['same']} of {found['records']} {found['source']} greedy answers come out the same, token for token"


def _write(job: _Job) -> tuple[folders.WrittenCheckpoint, dict[str, Any]]:
    context, block = job.making.context, job.block
    directory = context.settings.checkpoint_dir(context.run_id, context.attempt, block.step)

    def on_tensor(done: int, total: int) -> None:
        proceed(context, f"export {block.format}", done, total)

    if block.format == "hf":
        with FolderWeights(job.source) as weights:
            dtype = _DTYPES[job.dtype]
            return write_like(directory, weights, job.source, dtype=dtype, step=block.step, on_tensor=on_tensor), {}
    aside = directory.with_name(f".{directory.name}.export")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    facts = _write_files(job, aside, on_tensor)
    digest = _sha256(aside / (FILE if block.format == "gguf" else ADAPTER))

    def save(folder: Path) -> None:
        for path in sorted(aside.iterdir()):
            path.rename(folder / path.name)
        aside.rmdir()

    written = folders.write_checkpoint(
        directory, step=block.step, weights_sha256=digest, save_model=save, optimizer_tensors=None, trainer_state={}
    )
    return written, facts


def _write_files(job: _Job, folder: Path, on_tensor: Progress) -> dict[str, Any]:
    making, block = job.making, job.block
    if job.base is None:
        name = f"{making.trained.name or making.run.id} step {block.step}"
        return write_gguf(folder / FILE, job.source, job.dtype, name=name, on_tensor=on_tensor)
    if own_adapter(folder, job.source):
        return {"adapter": "the run's own"}
    facts = write_adapter(
        folder, job.source, job.base, rank=block.rank or 16, base_name=making.trained.model, on_tensor=on_tensor
    )
    return {"adapter": "truncated difference to the base", **facts}


def _verified(job: _Job, directory: Path) -> dict[str, Any]:
    records, kind = _records(job)
    # On a CPU the arithmetic is fp32: the exported numbers count, not the host's way with small types.
    dtype = torch.float32 if job.device.type == "cpu" else _DTYPES[job.dtype]
    extra: dict[str, Any] = {}
    if job.base is not None:
        model, tokenizer = verifying.load_adapter(directory, job.base, dtype, job.device)
    elif job.block.format == "gguf":
        model, tokenizer = verifying.load_gguf(directory, dtype, job.device)
        extra["tokenizes_alike"] = verifying.tokenizes_alike(load_tokenizer(job.source), tokenizer, records)
    else:
        model, tokenizer = verifying.load_hf(directory, dtype, job.device)
    return verifying.agreement(model, tokenizer, records, kind).as_dict() | extra


def _records(job: _Job) -> tuple[list[GreedyRecord], str]:
    """Stored greedy answers of exactly these weights; without any, the checkpoint is asked prompts of its run now."""
    limit = job.block.records
    if limit == 0:
        return [], "stored"
    with job.making.context.db.read() as session:
        stored = greedy.of_weights(session, job.row.sha256, limit)
        prompts = greedy.prompts_of_run(session, job.stems_from, limit)
    if stored or not prompts:
        return stored, "stored"
    return verifying.fresh_records(job.source, prompts, job.device), "fresh"


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
