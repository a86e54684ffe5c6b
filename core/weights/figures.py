"""The figure of a sweep: accuracy against beta, as Plotly JSON for the page and PNG and SVG for paper."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from matplotlib import rc_context
from matplotlib.figure import Figure
from plotly.utils import PlotlyJSONEncoder

NAME = "beta-sweep"
_COLOUR = "#3b6fb6"


def write_sweep(result: Mapping[str, Any], folder: Path) -> list[str]:
    """Write the figure into ``folder`` (which must exist) and return the file names; none where nothing was evaluated."""
    points = [point for point in result["points"] if point.get("accuracy") is not None]
    if not points:
        return []
    betas = [point["beta"] for point in points]
    values = [point["accuracy"] for point in points]
    above = [point["ci"][1] - point["accuracy"] for point in points]
    below = [point["accuracy"] - point["ci"][0] for point in points]
    title = f"Greedy accuracy on the line from step {result['a']['step']} to {result['b']['step']}"
    figure = go.Figure(
        go.Scatter(
            x=betas,
            y=values,
            mode="lines+markers",
            line={"color": _COLOUR},
            error_y={"type": "data", "array": above, "arrayminus": below},
            text=[f"step {point['target_step']:g}" for point in points],
            name="choosing items",
        )
    )
    figure.add_vline(x=1, line={"dash": "dot", "color": "#444444"})
    figure.update_layout(title=title, xaxis={"title": "beta (1 is the later checkpoint)"}, yaxis={"title": "accuracy"})
    document = json.loads(json.dumps(figure.to_plotly_json(), cls=PlotlyJSONEncoder))
    document["layout"].pop("template", None)
    (folder / f"{NAME}.json").write_text(json.dumps(document, allow_nan=False), encoding="utf-8")
    # A fixed salt and no date or version: equal numbers give equal files.
    with rc_context({"svg.hashsalt": "driftline", "font.family": "DejaVu Sans"}):
        drawn = Figure(figsize=(7, 4), layout="constrained")
        axes = drawn.subplots()
        axes.errorbar(betas, values, yerr=[below, above], marker="o", capsize=3, color=_COLOUR)
        axes.axvline(1, linestyle=":", color="#444444")
        axes.set(xlabel="beta (1 is the later checkpoint)", ylabel="accuracy", title=title)
        drawn.savefig(folder / f"{NAME}.png", metadata={"Software": None})
        drawn.savefig(folder / f"{NAME}.svg", metadata={"Date": None, "Creator": None})
    return [f"{NAME}.json", f"{NAME}.png", f"{NAME}.svg"]
