"""Rows that are too many for a JSON document, as Parquet files beside it: one table per name, columns of equal length."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet

Columns = Mapping[str, Sequence[Any] | NDArray[Any]]


@dataclass(frozen=True)
class Analysed:
    """The result document of one analysis, and the tables beside it."""

    result: dict[str, Any]
    tables: Mapping[str, Columns] = field(default_factory=dict)


def write_tables(tables: Mapping[str, Columns], folder: Path) -> list[str]:
    """Write ``NAME.parquet`` for every table into ``folder`` and return the file names. Matrices become lists per row."""
    names = []
    for name, columns in tables.items():
        table = pa.table({key: _column(values) for key, values in columns.items()})
        parquet.write_table(table, folder / f"{name}.parquet", compression="zstd")
        names.append(f"{name}.parquet")
    return names


def rows_as_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Turn documents with equal keys into columns."""
    return {key: [row[key] for row in rows] for key in rows[0]} if rows else {}


def _column(values: Sequence[Any] | NDArray[Any]) -> Any:
    if isinstance(values, np.ndarray) and values.ndim == 2:
        flat = pa.array(np.ascontiguousarray(values).reshape(-1))
        return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
    return pa.array(values)
