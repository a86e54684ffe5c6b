"""Merging overrides into a recipe and saying what changed. Pure functions on JSON values."""

from typing import Any


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7396: objects are merged key by key, null removes a key, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def recipe_diff(before: Any, after: Any, path: str = "") -> dict[str, dict[str, Any]]:
    """What differs, by dotted path: ``{"learning_rate": {"from": 1e-6, "to": 2e-6}}``; lists are compared whole."""
    if before == after and type(before) is type(after):
        return {}
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return {path: {"from": before, "to": after}}
    found: dict[str, dict[str, Any]] = {}
    for key in sorted(before.keys() | after.keys()):
        found |= recipe_diff(before.get(key), after.get(key), f"{path}.{key}" if path else key)
    return found
