"""Which tests this machine can run: those without their browser or data are deselected with a line that says so.

Under ``CI`` nothing may be missing: a missing part is then an error, so that a green run means that everything ran.
"""

import os
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")


def _missing() -> dict[str, str]:
    """Return for each marker that cannot run here the reason in words."""
    missing = {}
    if not any(shutil.which(name) for name in CHROMIUM_NAMES):
        missing["browser"] = "Chromium is not installed"
    if find_spec("vllm") is None:
        missing["vllm"] = "vLLM is not installed"
    data = os.environ.get("DRIFTLINE_DATA", "")
    if not data or not Path(data).is_dir():
        missing["data"] = "DRIFTLINE_DATA names no folder"
    return missing


def _card_missing() -> dict[str, str]:
    return {} if Path("/proc/driver/nvidia/version").exists() else {"gpu": "there is no NVIDIA card"}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # Processes take whole files in this order. The longest begin first, or one process would end with them alone.
    items.sort(key=lambda item: not item.nodeid.startswith("tests/service/"))
    missing = _missing()
    wanted_by = {marker: [item for item in items if marker in item.keywords] for marker in missing}
    if os.environ.get("CI") and any(wanted_by.values()):
        names = ", ".join(f"{marker} tests ({missing[marker]})" for marker, found in wanted_by.items() if found)
        raise pytest.UsageError(f"CI must run every test, but these cannot run here: {names}")
    missing |= _card_missing()
    kept = [item for item in items if not any(marker in item.keywords for marker in missing)]
    gone = [item for item in items if any(marker in item.keywords for marker in missing)]
    if gone:
        items[:] = kept
        config.hook.pytest_deselected(items=gone)
        config.stash[_LINES] = [
            f"deselected {sum(marker in item.keywords for item in gone)} tests marked {marker}: {reason}"
            for marker, reason in missing.items()
            if any(marker in item.keywords for item in gone)
        ]


_LINES = pytest.StashKey[list[str]]()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines = config.stash.get(_LINES, [])
    if config.pluginmanager.hasplugin("dsession"):  # other processes collected, so their number is not known here
        lines = [
            f"deselected tests marked {marker}: {reason}" for marker, reason in (_missing() | _card_missing()).items()
        ]
    for line in lines:
        terminalreporter.write_line(line)
