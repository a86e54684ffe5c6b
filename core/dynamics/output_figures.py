"""The figures of outputs, layers and gradients, described once: lines, bars or a grid, drawn by Plotly and by matplotlib alike.

A description holds the stored numbers only.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go
from matplotlib.figure import Figure


@dataclass(frozen=True)
class Series:
    """One line or set of bars; ``y`` may hold None. ``dashed`` marks what is not data: chance, a threshold."""

    name: str
    x: Sequence[Any]
    y: Sequence[float | None]
    dashed: bool = False


@dataclass(frozen=True)
class Drawn:
    """A figure: series as ``lines`` or ``bars`` (side by side), or the ``grid`` [y][x] of counts."""

    title: str
    x_title: str
    y_title: str
    kind: str
    series: tuple[Series, ...] = ()
    grid: tuple[Sequence[Any], Sequence[Any], Sequence[Sequence[float]]] | None = None


def figures(result: Mapping[str, Any]) -> Iterator[tuple[str, Drawn]]:
    """Yield (name, description) of what ``result`` holds."""
    if result.get("density"):
        density = result["density"]
        yield (
            "variance-and-r2",
            Drawn(
                f"{result['noun'].capitalize()} by variance and R2",
                "log10 of the variance over the checkpoints",
                "R2",
                "grid",
                grid=(density["log10_variance"], density["r2"], density["counts"]),
            ),
        )
    if result.get("layers"):
        yield "layers", _layers(result)
    if result.get("medians"):
        yield "first-order", _first_order(result)
    for name, curves in (result.get("curves") or {}).items():
        series = tuple(
            Series(key, curves["steps"], values, dashed="chance" in key) for key, values in curves["series"].items()
        )
        yield name, Drawn(curves["title"], "training step", curves["unit"], "lines", series)


def _layers(result: Mapping[str, Any]) -> Drawn:
    names = [layer["layer"] for layer in result["layers"]]
    null = result["nulls"][result["excess"]["over"]]["mean"]
    series = (
        Series("mean R2", names, [layer["mean"] for layer in result["layers"]]),
        Series("chance", names, [null] * len(names), dashed=True),
    )
    return Drawn("R2 of hidden states after every layer", "layer", "mean R2", "lines", series)


def _first_order(result: Mapping[str, Any]) -> Drawn:
    layers: dict[str, list[Mapping[str, Any]]] = {}
    for row in result["modules"]:
        layers.setdefault("other" if row["layer"] is None else str(row["layer"]), []).append(row)
    names = list(layers)
    labels = {"w0_dx": "W0 dx", "dw_x0": "dW x0", "dw_dx": "dW dx"}
    series = tuple(
        Series(label, names, [sum(row[key]["median"] for row in rows) / len(rows) for rows in layers.values()])
        for key, label in labels.items()
    )
    return Drawn("What changes the outputs of linear layers", "layer", "size relative to the change", "bars", series)


def plotly(drawn: Drawn) -> go.Figure:
    """Draw for the page."""
    figure = go.Figure()
    if drawn.grid is not None:
        x, y, z = drawn.grid
        figure.add_heatmap(x=list(x), y=list(y), z=[list(row) for row in z], colorscale="Viridis")
    for one in drawn.series:
        if drawn.kind == "bars":
            figure.add_bar(name=one.name, x=list(one.x), y=list(one.y))
        else:
            line = {"dash": "dot"} if one.dashed else {}
            figure.add_scatter(name=one.name, x=list(one.x), y=list(one.y), mode="lines", line=line)
    figure.update_layout(title=drawn.title, xaxis={"title": drawn.x_title}, yaxis={"title": drawn.y_title})
    return figure


def draw(drawn: Drawn, figure: Figure) -> None:
    """Draw for paper."""
    axes = figure.subplots()
    if drawn.grid is not None:
        x, y, z = drawn.grid
        image = axes.pcolormesh(list(x), list(y), [list(row) for row in z], shading="nearest", cmap="viridis")
        figure.colorbar(image, ax=axes)
    for place, one in enumerate(drawn.series):
        numbers = [float("nan") if value is None else value for value in one.y]
        if drawn.kind == "bars":
            width = 0.8 / len(drawn.series)
            axes.bar([at + place * width for at in range(len(numbers))], numbers, width=width, label=one.name)
        else:
            axes.plot(list(one.x), numbers, linestyle=":" if one.dashed else "-", label=one.name)
    if drawn.kind == "bars" and drawn.series:
        axes.set_xticks(range(len(drawn.series[0].x)), [str(name) for name in drawn.series[0].x], rotation=90)
    axes.set(title=drawn.title, xlabel=drawn.x_title, ylabel=drawn.y_title)
    if drawn.series:
        axes.legend()
