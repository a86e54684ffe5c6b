"""Column types and SQL expressions that mean the same on SQLite and PostgreSQL. No tables live here."""

import json
import math
import secrets
from typing import Any

from sqlalchemy import JSON, BigInteger, Double, Integer, String, Text
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.expression import FunctionElement
from sqlalchemy.types import TypeDecorator

ID_LENGTH = 12
"""Characters of an id: 48 random bits as lowercase hex."""

Big = BigInteger().with_variant(Integer, "sqlite")
"""A 64-bit integer; SQLite's INTEGER already is one, and only under that name can it be an autoincrementing key."""

Document = JSON(none_as_null=True)
"""A JSON value; Python's None is SQL NULL. Plain JSON on PostgreSQL too: JSONB refuses the escaped NUL that text may hold."""

Id = String(ID_LENGTH)
Hash = String(64)
Name = String(255)


def new_id() -> str:
    """Return a fresh random id of 12 lowercase hex characters."""
    return secrets.token_hex(ID_LENGTH // 2)


def to_json(value: Any) -> str:
    """Serialise for a JSON column; NaN and infinities raise ValueError, since PostgreSQL and the API know none."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


class DisplayText(TypeDecorator[str]):
    """Text made by a model. PostgreSQL stores no NUL and neither database a lone surrogate, so both become U+FFFD.

    Token ids are the record; text is for people, which is why replacing is right here.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Replace what cannot be stored."""
        if value is None:
            return None
        return value.replace("\x00", "\ufffd").encode("utf-8", "surrogatepass").decode("utf-8", "replace")


class Finite(TypeDecorator[float]):
    """A double that refuses NaN and infinities: SQLite would turn NaN into NULL in silence, PostgreSQL would keep it."""

    impl = Double
    cache_ok = True

    def process_bind_param(self, value: float | None, dialect: Dialect) -> float | None:
        """Raise ValueError for a number that is not finite."""
        if value is not None and not math.isfinite(value):
            raise ValueError(
                f"{value} cannot be stored in a column of finite numbers; store null and say why beside it"
            )
        return None if value is None else float(value)


class clock(FunctionElement[float]):  # noqa: N801 - reads as the SQL function it stands for
    """The database's present time: seconds since 1970 in UTC as a double, advancing within a transaction."""

    type = Double()
    inherit_cache = True
    name = "clock"


@compiles(clock, "sqlite")
def _clock_sqlite(element: clock, compiler: SQLCompiler, **kw: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(clock, "postgresql")
def _clock_postgresql(element: clock, compiler: SQLCompiler, **kw: Any) -> str:
    return "CAST(extract(epoch from clock_timestamp()) AS double precision)"
