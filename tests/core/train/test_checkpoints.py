"""A checkpoint is either whole or absent, and a changed one is noticed."""

import hashlib
import json
from pathlib import Path

import pytest
import torch

from core.train import checkpoints
from core.train.checkpoints import DamagedCheckpointError, verify_checkpoint, write_checkpoint


def save_one_file(directory: Path) -> None:
    (directory / "model.safetensors").write_bytes(b"weights")


def write(directory: Path, **changes: object) -> checkpoints.WrittenCheckpoint:
    arguments: dict[str, object] = {
        "step": 4,
        "weights_sha256": "ab" * 32,
        "save_model": save_one_file,
        "optimizer_tensors": {"m": torch.arange(3.0)},
        "trainer_state": {"updates": 4},
    }
    return write_checkpoint(directory, **(arguments | changes))  # type: ignore[arg-type]


def test_manifest_names_every_file_with_its_hash(tmp_path: Path) -> None:
    written = write(tmp_path / "step-4")
    manifest = json.loads((tmp_path / "step-4" / "manifest.json").read_text())
    assert manifest["files"]["model.safetensors"]["sha256"] == hashlib.sha256(b"weights").hexdigest()
    assert {file.name for file in written.files} == {*manifest["files"], "manifest.json"}
    assert verify_checkpoint(tmp_path / "step-4") == "ab" * 32
    assert torch.equal(checkpoints.read_optimizer(tmp_path / "step-4")["m"], torch.arange(3.0))
    assert checkpoints.read_trainer_state(tmp_path / "step-4") == {"updates": 4}


def test_a_failure_while_writing_leaves_no_checkpoint(tmp_path: Path) -> None:
    def fail(directory: Path) -> None:
        save_one_file(directory)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write(tmp_path / "step-4", save_model=fail)
    assert not (tmp_path / "step-4").exists()
    checkpoints.remove_leftovers(tmp_path, keep=())
    assert list(tmp_path.iterdir()) == []


def test_what_has_no_row_is_a_leftover_even_when_complete(tmp_path: Path) -> None:
    write(tmp_path / "step-2")
    write(tmp_path / "step-4")
    checkpoints.remove_leftovers(tmp_path, keep={"step-2"})
    assert [path.name for path in tmp_path.iterdir()] == ["step-2"]


@pytest.mark.parametrize("damage", ["change", "shorten", "remove", "unfinished"])
def test_damage_is_noticed_and_named(tmp_path: Path, damage: str) -> None:
    write(tmp_path / "step-4")
    weights = tmp_path / "step-4" / "model.safetensors"
    match damage:
        case "change":
            weights.write_bytes(b"weightz")
        case "shorten":
            weights.write_bytes(b"weight")
        case "remove":
            weights.unlink()
        case "unfinished":
            (tmp_path / "step-4" / "manifest.json").unlink()
    name = "manifest.json" if damage == "unfinished" else "model.safetensors"
    with pytest.raises(DamagedCheckpointError, match=name):
        verify_checkpoint(tmp_path / "step-4")


def test_weights_only_checkpoint_says_that_it_cannot_be_continued(tmp_path: Path) -> None:
    write(tmp_path / "step-4", optimizer_tensors=None)
    with pytest.raises(DamagedCheckpointError, match="weights only"):
        checkpoints.read_optimizer(tmp_path / "step-4")


def test_removing_takes_the_name_first(tmp_path: Path) -> None:
    write(tmp_path / "step-4")
    checkpoints.remove_checkpoint(tmp_path / "step-4")
    checkpoints.remove_checkpoint(tmp_path / "step-4")
    assert list(tmp_path.iterdir()) == []
