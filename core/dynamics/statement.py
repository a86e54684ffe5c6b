"""A result in words that can be quoted: the excess first, the raw share second, and what one run can show."""

from typing import Any

VERDICTS = {
    "beyond": "this run is more linear than chance",
    "within": "this run shows no linearity beyond chance",
    "below": "this run is less linear than chance",
    "unknown": "there is no scatter around the drift to compare with",
}


def verdict(result: dict[str, Any]) -> str:
    """Return ``beyond``, ``within``, ``below`` or ``unknown``: where the share lies to the band of one run's chance."""
    band, share = result["chance_band"], result["r2"]["share_above"]
    if band is None or share is None:
        return "unknown"
    if share > band["high"]:
        return "beyond"
    return "below" if share < band["low"] else "within"


def of(result: dict[str, Any]) -> str:
    """Say what ``result`` shows."""
    share, noun = result["r2"]["share_above"], result["noun"]
    if share is None:
        return f"No {noun.removesuffix('s')} changed between the checkpoints, so there is no trajectory to measure."
    excess, null, threshold = result["excess"], result["nulls"][result["excess"]["over"]], result["threshold"]
    expected = null["share_above"]
    walk = "a random walk with the same steps"
    if excess["over"] == "driven":
        walk += ", driven by this run's optimizer and schedule,"
    if result["null_rounded_as"]:
        walk += f" and rounded to {result['null_rounded_as']} as the folders are"
    parts = [
        f"Excess over chance: {_points(excess['share_above'])}.",
        f"The share of {noun} with R2 above {threshold:g} is {_percent(share)}; {walk} gives {_percent(expected)}."
        if expected is not None
        else f"The share of {noun} with R2 above {threshold:g} is {_percent(share)}; {walk} does not move at all.",
        _band_sentence(result),
        f"One run is one observation, however many {noun} it has: claim nothing before other seeds agree.",
    ]
    return " ".join(parts)


def _band_sentence(result: dict[str, Any]) -> str:
    band, found = result["chance_band"], VERDICTS[verdict(result)]
    if band is None:
        return f"{found[0].upper()}{found[1:]}."
    least = "at least" if band["at_least"] else "about"
    return (
        f"The increments scatter in {least} {band['directions']} independent directions; in one run such a walk gives "
        f"{_percent(band['low'])} to {_percent(band['high'])} (90 % of runs), so {found}."
    )


def _points(value: float | None) -> str:
    return "not known" if value is None else f"{100 * value:+.1f} percentage points"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"
