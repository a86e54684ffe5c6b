"""The curves document: the store's thinned points with their units, help texts and marks."""

from typing import Any

from sqlalchemy.orm import Session

from api.curve_keys import describe
from api.times import iso
from core.store import metrics
from core.store.metrics import Curve, Mark, Point


def document(session: Session, run_id: str, curves: dict[str, Curve], attempt: int | str) -> dict[str, Any]:
    """The document of ``GET /runs/{id}/curves``."""
    return {
        "run_id": run_id,
        "attempt": attempt,
        "curves": {key: _curve(key, curve) for key, curve in curves.items()},
        "marks": [_mark(mark) for mark in metrics.marks(session, run_id)],
    }


def csv_rows(curves: dict[str, Curve]) -> list[tuple[str, int, float | str | None, str]]:
    """One row per point: key, step, value (or nan, inf, -inf) and time."""
    return [
        (key, point.step, point.nonfinite or point.value, iso(point.at))
        for key, curve in curves.items()
        for point in curve.points
    ]


def _curve(key: str, curve: Curve) -> dict[str, Any]:
    info = describe(key)
    return {
        "points": [_point(point) for point in curve.points],
        "total": curve.total,
        "shown": curve.shown,
        "unit": info.unit,
        "help": info.help,
    }


def _point(point: Point) -> list[Any]:
    if point.nonfinite is not None:
        return [point.step, None, iso(point.at), point.nonfinite]
    return [point.step, point.value, iso(point.at)]


def _mark(mark: Mark) -> dict[str, Any]:
    detail = {name: iso(value) if name.endswith("_at") else value for name, value in mark.detail.items()}
    return {"kind": mark.kind, "step": mark.step} | detail
