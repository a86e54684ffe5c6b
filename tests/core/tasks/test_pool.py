"""The pool with real processes, small limits and hostile answers; every test ends by what happened, none by the clock."""

import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from core.tasks.items import Item, ItemError
from core.tasks.pool import Job, VerifierPool
from core.tasks.sources import load_suite_items
from core.tasks.verifiers import Outcome
from core.tasks.verifiers.gold import check_golds

ROOT = Path(__file__).resolve().parents[3]


def sum_of(answer: str) -> Item:
    return Item("i", "p", answer, "math")


# With a decimal point, since the pool itself judges whole numbers and these are for its processes.
GOOD = Job(sum_of("5"), r"\boxed{5.0}")
BAD = Job(sum_of("5"), r"\boxed{6.0}")
TOWER = Job(sum_of("5"), r"\boxed{9^{9^{9^{9}}}}")
FACTORIAL = Job(sum_of("3"), r"\boxed{100000000!}")
NEST = Job(sum_of("3"), r"\boxed{" + "(" * 200 + "x" + ")" * 200 + "}")
ROOTS = Job(sum_of("3"), r"\boxed{" + r"\sqrt{" * 60 + "x" + "}" * 60 + "}")


@pytest.fixture(scope="module")
def pool():
    with VerifierPool(workers=2, time_limit_s=1.5, memory_mb=1024) as started:
        yield started


def verdicts(pool: VerifierPool, jobs: list[Job]) -> list[Outcome]:
    return [verdict.verdict for verdict in pool.grade(jobs)]


def test_hostile_answers_in_a_row_harm_no_ordinary_neighbour(pool):
    jobs = [GOOD, TOWER, GOOD, FACTORIAL, TOWER, TOWER, BAD, GOOD]
    graded = pool.grade(jobs)
    for job, verdict in zip(jobs, graded, strict=True):
        if job is GOOD:
            assert verdict.verdict == Outcome.CORRECT
        elif job is BAD:
            assert verdict.verdict == Outcome.WRONG
        else:
            assert verdict.verdict in {Outcome.TIMEOUT, Outcome.ERROR}
            assert verdict.reason
            assert verdict.score == 0.0
    assert Outcome.TIMEOUT in {verdict.verdict for verdict in graded}


def test_deep_nests_end_with_a_verdict_and_a_reason(pool):
    for verdict in pool.grade([NEST, ROOTS, GOOD])[:2]:
        assert verdict.verdict in {Outcome.WRONG, Outcome.ERROR, Outcome.TIMEOUT}
        assert verdict.reason


def test_a_verdict_names_its_grader_version_answer_and_time(pool):
    (verdict,) = pool.grade([GOOD])
    assert (verdict.verifier, verdict.extracted, verdict.score) == ("math", "5.0", 1.0)
    assert verdict.version.startswith("math/")
    assert verdict.ms > 0


def test_code_in_an_answer_is_not_run(pool, tmp_path):
    marker = tmp_path / "ran"
    attacks = [f"__import__('os').system('touch {marker}')", f"exec(\"open('{marker}','w')\")", f"open('{marker}','w')"]
    assert verdicts(pool, [Job(sum_of("1"), rf"\boxed{{{attack}}}") for attack in attacks]) == [Outcome.WRONG] * 3
    assert not marker.exists()


def test_an_unknown_grader_is_an_infra_error_and_the_pool_goes_on(pool):
    first, second = pool.grade([Job(sum_of("5"), "x", verifier="palm_reading"), GOOD])
    assert first.verdict == Outcome.INFRA_ERROR
    assert "palm_reading" in first.reason
    assert first.score is None
    assert second.verdict == Outcome.CORRECT


def test_workers_killed_from_outside_are_replaced(pool):
    pool.grade([GOOD, GOOD])
    before = pool.pids()
    assert before
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    assert verdicts(pool, [GOOD] * 4) == [Outcome.CORRECT] * 4
    assert not set(before) & set(pool.pids())


def test_grading_works_off_the_main_thread_and_from_several_at_once(pool):
    found: list[Outcome] = []
    threads = [threading.Thread(target=lambda: found.extend(verdicts(pool, [GOOD] * 3))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [Outcome.CORRECT] * 9


def test_long_text_passes_through(pool):
    assert verdicts(pool, [Job(sum_of("5"), "thinking " * 100_000 + r"\boxed{5.0}")]) == [Outcome.CORRECT]


def test_an_answer_that_computes_without_end_is_ended_by_its_cpu_time_long_before_the_clock():
    with VerifierPool(workers=1, time_limit_s=3600) as patient:
        endless, after = patient.grade([TOWER, GOOD])
    assert (endless.verdict, endless.reason) == (Outcome.TIMEOUT, "grading used more than 4 s of CPU time")
    assert after.verdict == Outcome.CORRECT


def test_memory_beyond_the_limit_is_an_error_with_the_limit_named():
    with VerifierPool(workers=1, time_limit_s=20, memory_mb=64) as small:
        hungry, after = small.grade([Job(sum_of("5"), "</think>" + "x" * 40_000_000), GOOD])
    assert hungry.verdict == Outcome.ERROR
    assert "64 MiB" in hungry.reason
    assert after.verdict == Outcome.CORRECT


def test_closing_ends_the_workers_and_grading_afterwards_is_refused():
    with VerifierPool(workers=1, time_limit_s=2) as closed:
        closed.grade([GOOD])
        pids = closed.pids()
    assert not any(psutil.pid_exists(pid) for pid in pids)
    closed.close()
    with pytest.raises(RuntimeError, match="closed"):
        closed.grade([GOOD])


@pytest.mark.parametrize("answer", [r"\boxed{5.0}", r"\boxed{9^{9^{9^{9}}}}"])
def test_workers_end_when_their_parent_is_killed(answer):
    code = (
        "import sys, threading\n"
        "from core.tasks.items import Item\n"
        "from core.tasks.pool import Job, VerifierPool\n"
        "pool = VerifierPool(workers=1, time_limit_s=2)\n"
        "item = Item('i', 'p', '5', 'math')\n"
        "pool.grade([Job(item, '\\\\boxed{5.0}')])\n"
        "print(*pool.pids(), flush=True)\n"
        "pool.grade([Job(item, sys.argv[1])])\n"
        "threading.Event().wait()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, answer],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert parent.stdout is not None
    workers = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
    parent.kill()
    parent.wait()
    parent.stdout.close()
    _gone, alive = psutil.wait_procs(workers, timeout=30)
    assert workers
    assert not alive, "a worker outlived its parent"


def test_references_that_do_not_verify_refuse_the_data_by_name(pool):
    check_golds([sum_of("5"), sum_of(r"\frac{1}{2}")], pool)
    broken = Item("row-7", "p", r"\frac{1}{2", "math", source="a_file")
    with pytest.raises(ItemError, match=r"a_file: field 'answer' of 1 of 2 items.*row-7"):
        check_golds([sum_of("5"), broken], pool)


@pytest.mark.data
@pytest.mark.parametrize("name", ["aime24", "amc23", "math500"])
def test_references_of_the_items_folder_verify(pool, name):
    check_golds(load_suite_items(name, Path(os.environ["DRIFTLINE_DATA"])), pool)


def test_a_reference_that_nobody_could_judge_says_nothing_of_the_data(pool):
    unjudged = replace(sum_of("5"), verifier="palm_reading")
    with pytest.raises(RuntimeError, match="could not be judged") as failed:
        check_golds([sum_of("5"), unjudged], pool)
    assert not isinstance(failed.value, ItemError)
