"""A session says so, and fails, when items that it collected were not run; sessions that were ended early are left alone."""

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

CONFTEST = (Path(__file__).parent / "conftest.py").read_text()
TESTS = """
import pytest

@pytest.mark.parametrize("number", range(6))
def test_number(number):
    assert number != {failing}
"""
# Items made as a plugin for generated requests makes them: their names differ, their ids do not.
ONE_ID = """
import pytest

def pytest_pycollect_makeitem(collector, name, obj):
    if name == "test_generated":
        return [pytest.Function.from_parent(collector, name=f"{name}[{n}]", originalname=name, callobj=obj) for n in range(6)]
"""
GENERATED = "def test_generated(request):\n    assert request.node.name in {f'test_generated[{n}]' for n in range(6)}\n"
PARALLEL = ("-p", "xdist", "-n", "2", "--dist", "loadfile")


@pytest.fixture
def tests(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # most of such a session's time would be other plugins
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    pytester.makeconftest(CONFTEST)
    write(pytester, test_numbers=TESTS.format(failing=-1))
    return pytester


def write(pytester: pytest.Pytester, **modules: str) -> None:
    """Write modules beside each other, in a folder below the suite's conftest as those of this suite are."""
    pytester.makepyfile(**{f"inner/{name}": text for name, text in modules.items()})


def run(pytester: pytest.Pytester, *args: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider", *args)


def test_items_that_share_an_id_are_not_left_out_without_a_word(tests: pytest.Pytester) -> None:
    write(tests, conftest=ONE_ID, test_numbers=GENERATED)
    result = run(tests, *PARALLEL)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines("ERROR: 5 of 6 collected tests were not run: inner/test_numbers.py::test_generated (5)")


def test_in_one_process_they_all_run(tests: pytest.Pytester) -> None:
    write(tests, conftest=ONE_ID, test_numbers=GENERATED)
    result = run(tests)
    assert result.ret == 0
    result.assert_outcomes(passed=6)
    result.stdout.no_fnmatch_line("*not run*")


def test_a_failure_stays_a_failure_and_no_more(tests: pytest.Pytester) -> None:
    write(tests, test_numbers=TESTS.format(failing=2))
    result = run(tests)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=5, failed=1)
    result.stdout.no_fnmatch_line("*not run*")


@pytest.mark.parametrize(("args", "status"), [(("-x",), 1), (("--maxfail=1", *PARALLEL), 2), (("--collect-only",), 0)])
def test_a_session_that_was_told_to_end_early_is_left_alone(
    tests: pytest.Pytester, args: tuple[str, ...], status: int
) -> None:
    write(tests, test_numbers=TESTS.format(failing=0))
    result = run(tests, *args)
    assert result.ret == status
    result.stdout.no_fnmatch_line("*not run*")


def test_an_interrupt_stays_an_interrupt(tests: pytest.Pytester) -> None:
    write(tests, test_numbers=TESTS.format(failing=-1) + "    if number == 3:\n        raise KeyboardInterrupt\n")
    result = run(tests)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.no_fnmatch_line("*not run*")


def test_a_process_that_dies_is_a_failure_of_its_test(tests: pytest.Pytester) -> None:
    body = TESTS.format(failing=-1) + "    if number == 5:\n        import os\n        os._exit(1)\n"
    write(tests, test_numbers=body)
    result = run(tests, *PARALLEL, "--max-worker-restart=1")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines("*crashed while running*test_number*5*")
