"""Items of any Hugging Face data set by mapping its columns, from the operator's items folder first, then from the hub.

``hub:OWNER/NAME`` is looked for as the folder ``OWNER/NAME`` inside the items folder (parquet, JSON lines or CSV files, as
`datasets` reads them), which needs no network. No code of a data set is run. The items' hash is over their content, so a
moving revision cannot change a record unseen.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from core.recipes import hub_data
from core.tasks.item_tests import verifier_of
from core.tasks.items import Item, ItemError, ItemSet

_MAX_ROWS = 2_000_000


def hub_items(name: str, split: str, options: Mapping[str, Any], data_dir: Path | None) -> ItemSet:
    """Return the items of one split; raises :class:`ItemError` naming the data set, option, column or row at fault."""
    if not hub_data.is_name(name):
        raise ItemError(f"{name!r} is not of the form hub:OWNER/NAME")
    for option, message, hint in hub_data.option_faults(options):
        raise ItemError(f"{name}: options.{option}: {message}; {hint}")
    table = _table(name.removeprefix(hub_data.PREFIX), split, options, data_dir)
    for option in ("prompt", "answer", "tests", "id"):
        if option in options and options[option] not in table.column_names:
            columns = ", ".join(table.column_names)
            raise ItemError(
                f"{name}: options.{option}: there is no column {options[option]!r}; the columns are {columns}"
            )
    if not 1 <= len(table) <= _MAX_ROWS:
        raise ItemError(f"{name}: split {split!r} has {len(table)} rows; from 1 to {_MAX_ROWS} can be used")
    items = tuple(_item(name, number, row, options) for number, row in enumerate(table))
    verifiers = sorted({item.verifier for item in items})
    if len(verifiers) > 1:
        raise ItemError(f"{name}: items for the verifiers {' and '.join(verifiers)} are mixed; one set holds one kind")
    return ItemSet(items, name, verifiers[0], split=split)


def _table(repository: str, split: str, options: Mapping[str, Any], data_dir: Path | None) -> Any:
    import datasets

    folder = None if data_dir is None else data_dir / repository
    local = folder is not None and folder.is_dir()
    where = str(folder) if local else repository
    try:
        return datasets.load_dataset(
            where, name=options.get("config"), split=split, revision=None if local else options.get("revision")
        )
    except Exception as problem:  # noqa: BLE001 - the package raises many kinds for a name, a split, a network
        first = (str(problem).strip() or type(problem).__name__).splitlines()[0][:300]
        hint = (
            "check its files and the split"
            if local
            else f"check name, split and config, or put its files into {repository} in the items folder"
        )
        raise ItemError(f"hub:{repository} cannot be read: {first}; {hint}") from None


def _item(name: str, number: int, row: Mapping[str, Any], options: Mapping[str, Any]) -> Item:
    where = f"{name} row {number}"
    prompt = row[options["prompt"]]
    if not isinstance(prompt, str) or not prompt.strip():
        raise ItemError(f"{where}: column {options['prompt']!r} must hold a non-empty text")
    identifier = str(row[options["id"]]) if "id" in options else str(number)
    if "answer" in options:
        return Item(identifier, prompt, _answer(row[options["answer"]], options, where), "math", name)
    tests = _tests(row[options["tests"]], where)
    return Item(identifier, prompt, None, verifier_of(tests, where=where), name, tests)


def _answer(value: Any, options: Mapping[str, Any], where: str) -> str:
    marker = options.get("answer_after")
    text = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
    if not isinstance(text, str):
        raise ItemError(f"{where}: column {options['answer']!r} must hold a text or a number")
    if marker is not None:
        before, found, text = text.rpartition(marker)
        if not found:
            raise ItemError(
                f"{where}: column {options['answer']!r} does not hold the marker {marker!r}: {before or text[:60]!r}"
            )
    if not text.strip():
        raise ItemError(f"{where}: column {options['answer']!r} holds no answer")
    return text.strip()


def _tests(value: Any, where: str) -> dict[str, Any]:
    """The tests object; empty fields, which a table has where another row has a value, are left out."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as problem:
            raise ItemError(f"{where}: the tests are no JSON: {problem}") from None
    if isinstance(value, list):
        return {"type": "assert", "setup": "", "test_list": value}
    if not isinstance(value, dict):
        raise ItemError(f"{where}: the tests must be an object, JSON text or a list of assertions")
    return {field: content for field, content in value.items() if content is not None}
