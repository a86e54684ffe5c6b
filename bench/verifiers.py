"""How fast answers are graded, beside math-verify called directly, and what 1,000 hostile answers cost their neighbours.

    python bench/verifiers.py FOLDER [--json bench/results/verifiers.json] [--workers 2] [--hostile 1000]

FOLDER is the items folder (``math500.jsonl`` and ``gsm8k_test.jsonl`` are read). It prints a table and writes JSON. Times are
of this machine as it is; it asserts nothing.
"""

import argparse
import json
import os
import platform
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from core.tasks.items import Item
from core.tasks.pool import Job, VerifierPool
from core.tasks.sources import load_suite_items
from core.tasks.verifiers import Verdict

_TIME_LIMIT_S = 1.0
_MEMORY_MB = 1024
_DIRECT = 120  # items graded by math-verify itself; it is slow


@dataclass(frozen=True)
class Row:
    """One measurement: answers, seconds, answers a second, and that over math-verify's."""

    name: str
    answers: int
    seconds: float
    ratio: float | None
    verdicts: dict[str, int]

    @property
    def rate(self) -> float:
        """Answers a second."""
        return self.answers / self.seconds


def boxed(item: Item) -> Job:
    """The reference as an answer."""
    return Job(item, f"So the answer is $\\boxed{{{item.gold}}}$.")


def respelled(item: Item) -> Job:
    """The reference in another spelling, so that no comparison of texts decides."""
    gold = item.gold.replace("\\frac", "\\dfrac").replace("{", "{ ").replace("+", " + ")
    return Job(item, f"So the answer is $\\boxed{{1 \\cdot ({gold})}}$.")


def direct(jobs: Sequence[Job], name: str) -> Row:
    """The package math-verify on one core, reference and answer parsed and compared as its users do."""
    from math_verify import parse, verify

    started = time.perf_counter()
    found = Counter(
        "correct" if verify(parse(f"\\boxed{{{job.item.gold}}}"), parse(job.text)) else "wrong" for job in jobs
    )
    return Row(f"math-verify, one core: {name}", len(jobs), time.perf_counter() - started, None, dict(found))


def pooled(pool: VerifierPool, jobs: Sequence[Job], name: str, baseline: Row | None) -> Row:
    """The pool, all workers."""
    started = time.perf_counter()
    verdicts = pool.grade(jobs)
    seconds = time.perf_counter() - started
    ratio = len(jobs) / seconds / baseline.rate if baseline else None
    return Row(name, len(jobs), seconds, ratio, dict(Counter(verdict.verdict.value for verdict in verdicts)))


def hostile(count: int) -> Iterator[Job]:
    """Answers that are meant to hang, fill memory, crash or escape; all different."""
    five = Item("five", "p", "5", "math")
    tests = {"type": "assert", "setup": "", "test_list": ["assert f(2) == 4"], "cpu_s": 1}
    doubled = Item("doubled", "Write f, which doubles.", None, "code", tests=tests)
    bombs = (
        "while True: pass",
        "x = 'a' * 10**10",
        "import os\nwhile True: os.fork()",
        "import os, signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
        "print('x' * 10**9)\ndef f(x): return 4",
        "import os; os._exit(0)",
        "def f(x):\n    return f(x)",
        "open('/tmp/fill', 'wb').write(b'0' * 10**9)",
    )
    forms: tuple[Callable[[int], Job], ...] = (
        lambda n: Job(five, f"\\boxed{{{n}^{{9^{{9^{{9}}}}}}}}"),
        lambda n: Job(five, f"\\boxed{{{100_000_000 + n}!}}"),
        lambda n: Job(five, "\\boxed{" + "(" * (200 + n) + "x" + ")" * (200 + n) + "}"),
        lambda n: Job(five, "\\boxed{" + "\\sqrt{" * 60 + f"x+{n}" + "}" * 60 + "}"),
        lambda n: Job(five, f"\\boxed{{\\sum_{{k=1}}^{{10^{{{9 + n}}}}} \\frac{{1}}{{k^k}}}}"),
        lambda n: Job(five, f"\\boxed{{\\binom{{10^{{9}}+{n}}}{{5 \\cdot 10^8}}}}"),
        lambda n: Job(five, "\\boxed{" + "{" * 5000 + str(n) + "}" * 5000 + "}"),
        lambda n: Job(five, "\\boxed{" + "9" * (1500 + n % 400) + "^{x}}"),
        lambda n: Job(five, f"\\boxed{{__import__('os').system('exit {n}')}}"),
        lambda n: Job(doubled, f"```python\n# {n}\n{bombs[n % len(bombs)]}\n```"),
    )
    return (forms[n % len(forms)](n // len(forms)) for n in range(count))


def hostile_section(workers: int, count: int, ordinary: Sequence[Job]) -> dict[str, Any]:
    """Hostile answers with an ordinary one behind each: the verdicts of both kinds, the time, and the workers' memory."""
    jobs = [
        job
        for pair in zip(hostile(count), (ordinary[n % len(ordinary)] for n in range(count)), strict=False)
        for job in pair
    ]
    peak_mb = 0.0
    verdicts: list[Verdict] = []
    with VerifierPool(workers=workers, time_limit_s=_TIME_LIMIT_S, memory_mb=_MEMORY_MB) as pool:
        started = time.perf_counter()
        for start in range(0, len(jobs), 40):
            verdicts += pool.grade(jobs[start : start + 40])
            peak_mb = max(peak_mb, sum(_resident_mb(pid) for pid in pool.pids()))
        seconds = time.perf_counter() - started
    bad, good = verdicts[0::2], verdicts[1::2]
    return {
        "hostile": dict(Counter(verdict.verdict.value for verdict in bad)),
        "ordinary": dict(Counter(verdict.verdict.value for verdict in good)),
        "seconds": round(seconds, 1),
        "hostile_per_second": round(len(bad) / seconds, 2),
        "resident_mb_between_batches": round(peak_mb),
        "children_left": len(psutil.Process().children(recursive=True)),
    }


def _resident_mb(pid: int) -> float:
    try:
        return float(psutil.Process(pid).memory_info().rss) / 2**20
    except psutil.Error:
        return 0.0


def speed_section(folder: Path, workers: int) -> list[Row]:
    """Throughput on the two sets, answers as written and respelled."""
    rows: list[Row] = []
    sets = {"MATH-500": load_suite_items("math500", folder), "GSM8K": load_suite_items("gsm8k", folder)}
    with VerifierPool(workers=workers, time_limit_s=5.0) as pool:
        pool.grade([respelled(item) for item in list(sets["MATH-500"])[: 4 * workers]])  # start, imports, tables
        for name, items in sets.items():
            for what, form in (("references, boxed", boxed), ("references, respelled", respelled)):
                jobs = [form(item) for item in items]
                baseline = direct(jobs[:_DIRECT], f"{name} {what}")
                rows += [baseline, pooled(pool, jobs, f"pool of {workers}: {name} {what}", baseline)]
    return rows


def main() -> int:
    """Run the sections; one that fails does not lose the others."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--hostile", type=int, default=1000)
    given = parser.parse_args()
    started = time.perf_counter()
    failed = False
    report: dict[str, Any] = {"python": platform.python_version(), "cores": os.cpu_count(), "load": os.getloadavg()[0]}
    try:
        rows = speed_section(given.folder, given.workers)
        report["speed"] = [asdict(row) | {"per_second": round(row.rate, 1)} for row in rows]
        print(f"{'what':58} {'answers':>8} {'per s':>9} {'ratio':>7}  verdicts")
        for row in rows:
            ratio = f"{row.ratio:7.1f}" if row.ratio else "      -"
            print(f"{row.name:58} {row.answers:8} {row.rate:9.0f} {ratio}  {row.verdicts}")
    except Exception:  # noqa: BLE001
        failed = True
        traceback.print_exc()
    try:
        ordinary = [respelled(item) for item in list(load_suite_items("gsm8k", given.folder))[:50]]
        report["hostile"] = hostile_section(given.workers, given.hostile, ordinary)
        for name, value in report["hostile"].items():
            print(f"{name:30} {value}")
    except Exception:  # noqa: BLE001
        failed = True
        traceback.print_exc()
    report["total_s"] = round(time.perf_counter() - started, 1)
    print(f"total {report['total_s']} s")
    if given.json:
        given.json.write_text(json.dumps(report, indent=1) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
