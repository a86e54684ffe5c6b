"""The figures of an analysis' result: Plotly JSON for the page, PNG and SVG for paper, all from the stored numbers alone.

Whoever has the result document can draw the same figures again; no checkpoint is read here.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from plotly.utils import PlotlyJSONEncoder

from core.dynamics import output_figures

_WEIGHTS = "#3b6fb6"
_NULLS = {"plain": "#888888", "driven": "#c8553d"}
_NULL_NAMES = {"plain": "random walk", "driven": "walk driven by this optimizer"}

Result = Mapping[str, Any]


def write_figures(result: Result, folder: Path) -> list[str]:
    """Write every figure of ``result`` into ``folder`` (which must exist) and return the file names."""
    names = []
    for name, plotly_figure, draw, size in _figures(result):
        (folder / f"{name}.json").write_text(json.dumps(plotly_figure, allow_nan=False), encoding="utf-8")
        _write_images(folder, name, draw, size)
        names += [f"{name}.json", f"{name}.png", f"{name}.svg"]
    return names


def plotly_figures(result: Result) -> dict[str, dict[str, Any]]:
    """Return the Plotly documents of ``result`` by figure name."""
    return {name: figure for name, figure, _, _ in _figures(result)}


Drawing = Callable[[Figure], None]


def _figures(result: Result) -> Iterator[tuple[str, dict[str, Any], Drawing, tuple[float, float]]]:
    """Yield what the numbers of ``result`` allow to draw; every analysis has some of these parts."""
    if "histogram" in result:
        yield (
            "r2-histogram",
            _plotly_histogram(result),
            lambda figure: _draw_histogram(result, figure.subplots()),
            (7, 4),
        )
    if "heat_map" in result:
        rows, columns = len(result["heat_map"]["modules"]), len(result["heat_map"]["columns"])
        yield (
            "layer-heat-map",
            _plotly_heat_map(result),
            lambda figure: _draw_heat_map(result, figure),
            (min(30.0, 4 + 0.35 * columns), min(30.0, 1.8 + 0.35 * rows)),
        )
    if result.get("examples"):
        yield "trajectories", _plotly_examples(result), lambda figure: _draw_examples(result, figure.subplots()), (7, 4)
    for name, figure in output_figures.figures(result):
        yield name, _plotly(output_figures.plotly(figure)), partial(output_figures.draw, figure), (7, 4)


def _title(result: Result) -> str:
    share, excess = result["r2"]["share_above"], result["excess"]["share_above"]
    if share is None or excess is None:
        return f"R2 of the trajectories of {result['noun']}"
    return f"{100 * excess:+.1f} points over chance; {100 * share:.1f} % of {result['noun']} above R2 {result['threshold']:g}"


def _densities(result: Result) -> Iterator[tuple[str, str, list[float], list[float]]]:
    """Yield (name, colour, bin centres, share of weights per bin) of the weights and of each null."""
    series = [(result["noun"], _WEIGHTS, result["histogram"])]
    series += [(_NULL_NAMES[name], _NULLS[name], null["histogram"]) for name, null in result["nulls"].items()]
    for name, colour, counts in series:
        total = sum(counts) or 1
        centres = [(place + 0.5) / len(counts) for place in range(len(counts))]
        yield name, colour, centres, [count / total for count in counts]


def _plotly(figure: go.Figure) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(figure.to_plotly_json(), cls=PlotlyJSONEncoder))
    # The default template is a page of colours that repeats in every figure; the page brings its own.
    document["layout"].pop("template", None)
    return document


def _plotly_histogram(result: Result) -> dict[str, Any]:
    figure = go.Figure()
    for name, colour, centres, shares in _densities(result):
        if name == result["noun"]:
            figure.add_bar(name=name, x=centres, y=shares, marker={"color": colour})
        else:
            figure.add_scatter(name=name, x=centres, y=shares, mode="lines", line={"color": colour, "shape": "hvh"})
    figure.add_vline(x=result["threshold"], line={"dash": "dot", "color": "#444444"})
    figure.update_layout(
        title=_title(result),
        xaxis={"title": "R2 of the trajectory", "range": [0, 1]},
        yaxis={"title": f"share of changed {result['noun']}"},
        bargap=0,
    )
    return _plotly(figure)


def _plotly_heat_map(result: Result) -> dict[str, Any]:
    heat = result["heat_map"]
    figure = go.Figure(
        go.Heatmap(x=heat["columns"], y=heat["modules"], z=heat["mean_r2"], zmin=0, zmax=1, colorscale="Viridis")
    )
    figure.update_layout(
        title="Mean R2 by layer and module",
        xaxis={"title": "layer", "type": "category"},
        yaxis={"autorange": "reversed", "type": "category"},
    )
    return _plotly(figure)


def _plotly_examples(result: Result) -> dict[str, Any]:
    figure = go.Figure()
    for example in result["examples"]:
        figure.add_scatter(
            name=_example_name(example), x=result["trajectory"]["steps"], y=_scaled(example), mode="lines+markers"
        )
    figure.update_layout(
        title="Trajectories of a seeded sample of weights",
        xaxis={"title": "training step"},
        yaxis={"title": "change / largest change"},
    )
    return _plotly(figure)


def _example_name(example: Mapping[str, Any]) -> str:
    return f"{example['tensor']}[{example['index']}] R2 {example['r2']:.2f}"


def _scaled(example: Mapping[str, Any]) -> list[float]:
    largest = max(abs(value) for value in example["change"])
    return [value / largest for value in example["change"]]


def _draw_histogram(result: Result, axes: Axes) -> None:
    for name, colour, centres, shares in _densities(result):
        if name == result["noun"]:
            axes.bar(centres, shares, width=1 / len(centres), color=colour, label=name)
        else:
            axes.step(centres, shares, where="mid", color=colour, label=name)
    axes.axvline(result["threshold"], linestyle=":", color="#444444")
    axes.set(
        xlabel="R2 of the trajectory",
        ylabel=f"share of changed {result['noun']}",
        xlim=(0, 1),
        title=_title(result),
    )
    axes.legend()


def _draw_heat_map(result: Result, figure: Figure) -> None:
    heat = result["heat_map"]
    axes = figure.subplots()
    cells = [[float("nan") if value is None else value for value in row] for row in heat["mean_r2"]]
    image = axes.imshow(cells, vmin=0, vmax=1, cmap="viridis", aspect="auto")
    axes.set_xticks(range(len(heat["columns"])), heat["columns"], rotation=90)
    axes.set_yticks(range(len(heat["modules"])), heat["modules"])
    axes.set(xlabel="layer", title="Mean R2 by layer and module")
    figure.colorbar(image, ax=axes)


def _draw_examples(result: Result, axes: Axes) -> None:
    for example in result["examples"]:
        axes.plot(result["trajectory"]["steps"], _scaled(example), marker=".", label=_example_name(example))
    axes.set(
        xlabel="training step", ylabel="change / largest change", title="Trajectories of a seeded sample of weights"
    )
    axes.legend(fontsize=5, loc="center left", bbox_to_anchor=(1, 0.5))


def _write_images(folder: Path, name: str, draw: Drawing, size: tuple[float, float]) -> None:
    # A fixed salt and no date or version: equal numbers give equal files.
    with rc_context({"svg.hashsalt": "driftline", "font.family": "DejaVu Sans"}):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        figure.savefig(folder / f"{name}.png", metadata={"Software": None})
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None, "Creator": None})
