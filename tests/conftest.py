"""The real small model, and a count that no parallel run may fall short of. Everything else is built where it is needed."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

_ENDED_BY_ITSELF = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
_SHOWN = 5


@pytest.fixture(scope="session")
def smollm2_dir() -> Path:
    """Folder of the dequantised SmolLM2-135M-Instruct under DRIFTLINE_HOME, prepared on first use (about 40 s).

    A missing GGUF fails the test: a suite that silently skips its only real model would say nothing about engines.
    """
    from core.engines.base import EngineError
    from core.engines.smollm2 import prepare
    from core.settings import Settings

    try:
        return prepare(Settings.from_env().smollm2_dir)
    except EngineError as error:
        pytest.fail(f"the real model is not there, run `make setup`: {error}")


class EveryItem:
    """Fails a session that ran to its end without a result for every collected item.

    pytest-xdist knows items by their ids alone: of several with one id it runs the first and forgets the others. A session
    that ended early, by -x, --maxfail, Ctrl-C or an error, has said so already and is left alone.
    """

    def __init__(self) -> None:
        self._collected: Counter[str] = Counter()
        self._reported: Counter[str] = Counter()
        self._missing: Counter[str] = Counter()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._collected |= Counter(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Iterable[str]) -> None:
        self._collected |= Counter(ids)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._reported[nodeid] += 1

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when not in ("setup", "call", "teardown"):  # its process died, so it never finished
            self._reported[report.nodeid] += 1

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if session.shouldfail or session.shouldstop or exitstatus not in _ENDED_BY_ITSELF:
            return
        self._missing = self._collected - self._reported
        if self._missing:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._missing:
            names = [f"{nodeid} ({count})" for nodeid, count in self._missing.most_common(_SHOWN)]
            more = len(self._missing) - len(names)
            terminalreporter.write_line(
                f"ERROR: {self._missing.total()} of {self._collected.total()} collected tests were not run: "
                + ", ".join(names)
                + (f" and {more} more" if more else ""),
                red=True,
            )


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput") and not config.option.collectonly:  # whoever starts the processes counts
        config.pluginmanager.register(EveryItem(), "driftline-every-item")
