"""Where items come from: JSONL files of the operator's items folder, and reasoning-gym's generators.

A data set is named ``gsm8k`` (the catalogue knows its files), ``file:NAME.jsonl`` (a file of the items folder),
``reasoning_gym:TASK`` or ``hub:OWNER/NAME`` (:mod:`core.tasks.hub`). Files are read, never fetched; names never leave the
folder. Errors name file, line and field.
"""

import gzip
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from core.recipes.catalogue import DATASETS, SUITES, SuiteFacts
from core.recipes.gym_tasks import UNSAFE_TASKS
from core.streams import stream_seed
from core.tasks import livecodebench
from core.tasks.item_tests import verifier_of
from core.tasks.items import Item, ItemError, ItemSet

_MAX_FILE_BYTES = 1 << 30
_MAX_GENERATED = 1_000_000
_FIELDS = {"id", "prompt", "answer", "tests", "source", "meta"}


def load_items(
    dataset: str,
    split: str = "train",
    options: Mapping[str, Any] | None = None,
    data_dir: Path | None = None,
    *,
    seed: int = 0,
) -> ItemSet:
    """Return the items of one data set and split, in file or index order.

    ``options`` are a generator's options with ``size`` (the number of items) and optionally ``seed``; without it the
    generator's seed is drawn from the stream ("items",) under ``seed``. Files take no options.

    Raises :class:`ItemError` that says which data set, file, line or field is wrong and what is allowed.
    """
    kind, _, name = dataset.partition(":")
    if kind == "reasoning_gym" and name:
        return generate_items(name, dict(options or {}), seed=seed)
    if kind == "hub" and name:
        from core.tasks.hub import hub_items

        return hub_items(dataset, split, dict(options or {}), data_dir)
    if options:
        raise ItemError(f"data.options: {dataset} takes no options, but got {', '.join(sorted(options))}; remove them")
    if kind == "file" and name:
        return read_items(data_file(name, data_dir), name=dataset, split=split)
    facts = DATASETS.get(dataset)
    if facts is None and dataset in SUITES:
        return load_suite_items(dataset, data_dir)
    if facts is None:
        known = ", ".join(sorted({*DATASETS, *SUITES}))
        raise ItemError(f"data.dataset {dataset!r} is not known; allowed: reasoning_gym:TASK, file:NAME.jsonl, {known}")
    if split not in facts.splits:
        raise ItemError(f"data.split: {dataset} has no split {split!r}; allowed: {', '.join(facts.splits)}")
    part = facts.splits[split]
    return _catalogue_items(dataset, SuiteFacts(facts.verifier, part.file, part.items, split), data_dir)


def load_suite_items(name: str, data_dir: Path | None, *, seed: int = 0) -> ItemSet:
    """Return the items of a suite by its bare name: of the catalogue, ``file:NAME.jsonl`` or ``reasoning_gym:TASK``.

    A generated suite has the generator's default options and a generator's seed from the stream ("suite", name), which is
    not that of training items. Raises :class:`ItemError` when it is unknown or its file is not there.
    """
    if name.startswith("reasoning_gym:"):
        return load_items(name, "test", {"seed": stream_seed(seed, "suite", name) % 2**31}, data_dir)
    if name.startswith("file:"):
        return load_items(name, "test", None, data_dir)
    facts = SUITES.get(name)
    if facts is None:
        raise ItemError(f"suite {name!r} is not known; allowed: {', '.join(SUITES)}")
    return _catalogue_items(name, facts, data_dir)


def data_file(name: str, data_dir: Path | None) -> Path:
    """Return the path of a file of the items folder.

    The name is one plain file name: folders, ``..`` and symbolic links are refused, so nothing outside the folder can be
    read through it.
    """
    if data_dir is None:
        raise ItemError(
            f"{name} is in the items folder, but none is set; set DRIFTLINE_DATA to the folder that holds it"
        )
    if not name or name != Path(name).name or name in {".", ".."} or "\\" in name or "\0" in name:
        raise ItemError(f"file name {name!r} must be a plain name inside the items folder, without folders or '..'")
    if not name.endswith((".jsonl", ".jsonl.gz")):
        raise ItemError(f"file name {name!r} must end in .jsonl or .jsonl.gz")
    path = data_dir / name
    if path.is_symlink():
        raise ItemError(f"{name} in the items folder is a symbolic link; put the file itself there")
    if not path.is_file():
        raise ItemError(
            f"{name} is not in the items folder; put it there or set DRIFTLINE_DATA to the folder that holds it"
        )
    return path


def read_items(path: Path, *, name: str, split: str = "train") -> ItemSet:
    """Read a ``.jsonl`` or ``.jsonl.gz`` file of objects {id, prompt, answer | tests, source, meta}.

    All items need one verifier. Raises :class:`ItemError` naming file, line and field.
    """
    items: list[Item] = []
    lines: dict[str, int] = {}
    for number, text in _lines(path):
        item = parse_item(text, where=f"{path.name} line {number}")
        if item.id in lines:
            raise ItemError(f"{path.name} line {number}: field 'id' repeats {item.id!r} of line {lines[item.id]}")
        lines[item.id] = number
        items.append(item)
    if not items:
        raise ItemError(f"{path.name} holds no items")
    verifiers = sorted({item.verifier for item in items})
    if len(verifiers) > 1:
        raise ItemError(f"{path.name} mixes items for the verifiers {' and '.join(verifiers)}; one file holds one kind")
    return ItemSet(tuple(items), name, verifiers[0], split=split)


def parse_item(text: str, *, where: str) -> Item:
    """Read one JSON line; raises :class:`ItemError` that begins with ``where`` and names the field."""
    try:
        raw = json.loads(text, object_pairs_hook=_no_repeated_keys, parse_constant=_no_constants)
    except (ValueError, RecursionError) as problem:
        raise ItemError(f"{where}: not one JSON object: {problem}") from None
    if not isinstance(raw, dict):
        raise ItemError(f"{where}: a {type(raw).__name__}, but each line must be one JSON object")
    if livecodebench.is_release_row(raw):
        return livecodebench.item(raw, where=where)
    unknown = sorted(set(raw) - _FIELDS)
    if unknown:
        raise ItemError(f"{where}: unknown field {unknown[0]!r}; allowed: {', '.join(sorted(_FIELDS))}")
    for field in ("id", "prompt"):
        if not isinstance(raw.get(field), str) or not raw[field].strip():
            raise ItemError(f"{where}: field {field!r} must be a non-empty string")
    source, meta = raw.get("source", ""), raw.get("meta", {})
    if not isinstance(source, str):
        raise ItemError(f"{where}: field 'source' must be a string")
    if not isinstance(meta, dict):
        raise ItemError(f"{where}: field 'meta' must be an object")
    answer, tests = raw.get("answer"), raw.get("tests")
    if (answer is None) == (tests is None):
        raise ItemError(f"{where}: exactly one of the fields 'answer' and 'tests' must be given")
    if answer is not None and (not isinstance(answer, str) or not answer.strip()):
        raise ItemError(f"{where}: field 'answer' must be a non-empty string (numbers too: \"72\")")
    verifier = "math" if tests is None else verifier_of(tests, where=where)
    return Item(
        id=raw["id"], prompt=raw["prompt"], answer=answer, verifier=verifier, source=source, tests=tests, meta=meta
    )


def generate_items(task: str, options: dict[str, Any], *, seed: int) -> ItemSet:
    """Generate a reasoning-gym task's items; the same arguments and package version give the same items.

    Each id ends in a digest of the item's content, so that two draws of one task are never taken for the same items.
    """
    import reasoning_gym
    from reasoning_gym.factory import DATASETS as TASKS

    where = f"reasoning_gym:{task}"
    if task not in TASKS:
        raise ItemError(f"data.dataset: reasoning_gym has no task {task!r}; one it has is chain_sum")
    if task in UNSAFE_TASKS:
        raise ItemError(f"data.dataset: {where} cannot be used, since its scorer evaluates the answer as code")
    options = dict(options)
    size = _count(options.pop("size", 500), f"{where}: data.options.size")
    generator_seed = options.pop("seed", None)
    if generator_seed is None:
        generator_seed = stream_seed(seed, "items") % 2**31
    elif isinstance(generator_seed, bool) or not isinstance(generator_seed, int) or generator_seed < 0:
        raise ItemError(f"{where}: data.options.seed must be an integer of at least 0")
    try:
        dataset = reasoning_gym.create_dataset(task, seed=generator_seed, size=size, **options)
        entries = [dataset[index] for index in range(size)]
    except (AssertionError, TypeError, ValueError, KeyError) as problem:
        allowed = ", ".join(sorted(set(TASKS[task][1].__dataclass_fields__) - {"seed", "size"}))
        raise ItemError(f"{where}: data.options: {problem}; the task's options are: {allowed}") from None
    meta = {"task": task, "options": options, "seed": generator_seed, "size": size}
    items = tuple(
        Item(
            id=f"{task}-{index}-{_digest(entry['question'], str(entry['answer']))}",
            prompt=entry["question"],
            answer=str(entry["answer"]),
            verifier="reasoning_gym",
            source=where,
            meta={**meta, "index": index},
        )
        for index, entry in enumerate(entries)
    )
    return ItemSet(items, where, "reasoning_gym", generated=True)


def _catalogue_items(name: str, facts: SuiteFacts, data_dir: Path | None) -> ItemSet:
    items = read_items(data_file(facts.file, data_dir), name=name, split=facts.split)
    if len({item.meta.get("split") for item in items}) > 1:
        # One file may hold several splits (MBPP); its items say which is theirs.
        chosen = [item for item in items if facts.split in {"all", item.meta.get("split")}]
        items = items.subset(chosen, name=name, split=facts.split)
    if facts.items is not None and len(items) != facts.items:
        raise ItemError(
            f"{facts.file} holds {len(items)} items, but {name}/{facts.split} has {facts.items}; replace the file"
        )
    return items


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, text) of the non-blank lines; both plain and gzip, size bounded after unpacking."""
    opener = gzip.open if path.name.endswith(".gz") else open
    size = 0
    try:
        with opener(path, "rb") as stream:
            for number, line in enumerate(stream, start=1):
                size += len(line)
                if size > _MAX_FILE_BYTES:
                    raise ItemError(f"{path.name} is larger than {_MAX_FILE_BYTES >> 20} MiB unpacked; split it")
                try:
                    text = line.decode("utf-8")
                except UnicodeDecodeError as problem:
                    raise ItemError(f"{path.name} line {number}: not UTF-8 at byte {problem.start}") from None
                if text.strip():
                    yield number, text
    except (OSError, EOFError) as problem:
        raise ItemError(f"{path.name} cannot be read: {problem}") from None


def _no_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} is given twice")
    return found


def _no_constants(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _count(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MAX_GENERATED:
        raise ItemError(f"{where} must be an integer from 1 to {_MAX_GENERATED}, but is {value!r}")
    return value


def _digest(question: str, answer: str) -> str:
    return hashlib.sha256(json.dumps([question, answer]).encode()).hexdigest()[:8]
