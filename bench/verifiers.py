"""How fast answers are graded, beside math-verify called directly, and what 1,000 hostile answers cost their neighbours.

    python bench/verifiers.py FOLDER [--json bench/results/verifiers.json] [--workers 2] [--hostile 1000]

FOLDER is the items folder (MATH-500, GSM8K, HumanEval and MBPP are read). It prints a table and writes JSON. Times are
of this machine as it is; it asserts nothing.
"""

import argparse
import datetime
import json
import os
import platform
import sys
import threading
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
from core.tasks.sources import load_suite_items, read_items
from core.tasks.verifiers import version_of

_DIRECT = 120  # items graded by math-verify itself; it is slow
_FORM_NAMES = (
    "tower", "factorial", "brackets", "roots", "sum of 10^n terms", "binomial", "braces", "long base", "injection", "program",
)  # fmt: skip
_FORMS = len(_FORM_NAMES)


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
    """The reference as twice its half, so that no comparison of texts decides; of tuples and words that is another thing."""
    return Job(item, f"So the answer is $\\boxed{{\\frac{{2 \\cdot ({item.gold})}}{{2}}}}$.")


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


def neighbours(folder: Path) -> list[Job]:
    """Ordinary answers: whole numbers, expressions that need the parser, wrong ones, right and wrong programs."""
    sums, expressions = list(load_suite_items("gsm8k", folder))[:20], list(load_suite_items("math500", folder))[:20]
    programs = list(load_suite_items("humaneval", folder))[:10]
    groups = (
        [boxed(item) for item in sums],
        [respelled(item) for item in sums],
        [respelled(item) for item in expressions],
        [Job(item, f"\\boxed{{{item.gold} + \\sqrt{{2}}}}") for item in expressions],
        [Job(item, str(item.meta["canonical_solution"])) for item in programs],
        [Job(item, "    return None\n") for item in programs],
    )
    most = max(map(len, groups))
    return [group[n % len(group)] for n in range(most) for group in groups]


def hostile_section(workers: int, count: int, ordinary: Sequence[Job]) -> dict[str, Any]:
    """Hostile answers with an ordinary one behind each, in a pool with the limits that runs have.

    The ordinary ones are graded before in a pool of their own; harmed are those whose verdict or answer read is another one
    between the hostile.
    """
    with VerifierPool(workers=workers) as pool:
        alone = pool.grade(ordinary)
    jobs = [
        job
        for pair in zip(hostile(count), (ordinary[n % len(ordinary)] for n in range(count)), strict=False)
        for job in pair
    ]
    with VerifierPool(workers=workers) as pool, TreeMemory() as memory:
        started = time.perf_counter()
        verdicts = pool.grade(jobs)
        seconds = time.perf_counter() - started
    bad, good = verdicts[0::2], verdicts[1::2]
    expected = [alone[n % len(alone)] for n in range(count)]
    harmed = [
        f"{job.item.id}: {now.verdict} ({now.reason}) instead of {before.verdict}"
        for job, now, before in zip(jobs[1::2], good, expected, strict=True)
        if (now.verdict, now.extracted) != (before.verdict, before.extracted)
    ]
    by_form = [Counter(verdict.verdict.value for verdict in bad[n::_FORMS]) for n in range(_FORMS)]
    return {
        "hostile": dict(Counter(verdict.verdict.value for verdict in bad)),
        "hostile_by_form": {name: dict(found) for name, found in zip(_FORM_NAMES, by_form, strict=True)},
        "hostile_right": sum(verdict.score == 1 for verdict in bad),
        "hostile_slowest_s": round(max(verdict.ms for verdict in bad) / 1000, 1),
        "ordinary": dict(Counter(verdict.verdict.value for verdict in good)),
        "ordinary_slowest_s": round(max(verdict.ms for verdict in good) / 1000, 1),
        "ordinary_harmed": harmed,
        "seconds": round(seconds, 1),
        "hostile_per_second": round(len(bad) / seconds, 2),
        "peak_tree_mb": memory.peak_mb,
        "children_left": len(psutil.Process().children(recursive=True)),
    }


class TreeMemory:
    """The peak of what this process and all below it hold, looked at ten times a second: shared pages counted once (PSS)."""

    def __init__(self) -> None:
        self.peak_mb = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "TreeMemory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        own = psutil.Process()
        while not self._over.wait(0.1):
            held = sum(_proportional_mb(process) for process in [own, *own.children(recursive=True)])
            self.peak_mb = max(self.peak_mb, round(held))


def _proportional_mb(process: psutil.Process) -> float:
    try:
        return float(process.memory_full_info().pss) / 2**20
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


def code_section(folder: Path, workers: int) -> list[Row]:
    """The reference programs of two sets, each in the sandbox with its tests."""
    rows: list[Row] = []
    with VerifierPool(workers=workers) as pool:
        for name in ("humaneval", "mbpp"):
            items = read_items(folder / f"{name}.jsonl", name=name)
            jobs = [Job(item, _solution(item)) for item in items]
            rows.append(pooled(pool, jobs, f"pool of {workers}: {name}, reference programs", None))
    return rows


def _solution(item: Item) -> str:
    return str(item.meta.get("canonical_solution") or f"```python\n{item.meta['code']}\n```")


def environment() -> dict[str, Any]:
    """Machine, versions and date."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "versions": {name: version_of(name) for name in ("math", "code")},
    }


def main() -> int:
    """Run the sections; one that fails does not lose the others."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--hostile", type=int, default=1000)
    given = parser.parse_args()
    started = time.perf_counter()
    report = environment()
    failed = False
    sections: dict[str, Callable[[], Any]] = {
        "speed": lambda: table(speed_section(given.folder, given.workers)),
        "programs": lambda: table(code_section(given.folder, given.workers)),
        "hostile": lambda: shown(hostile_section(given.workers, given.hostile, neighbours(given.folder))),
    }
    for name, section in sections.items():
        try:
            report[name] = section()
        except Exception:  # noqa: BLE001
            failed = True
            traceback.print_exc()
    report["total_s"] = round(time.perf_counter() - started, 1)
    print(f"total {report['total_s']} s")
    if given.json:
        given.json.write_text(json.dumps(report, indent=1) + "\n")
    return int(failed)


def table(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Print rows and give them as documents."""
    print(f"{'what':58} {'answers':>8} {'per s':>9} {'ratio':>7}  verdicts")
    for row in rows:
        ratio = f"{row.ratio:7.1f}" if row.ratio else "      -"
        print(f"{row.name:58} {row.answers:8} {row.rate:9.0f} {ratio}  {row.verdicts}", flush=True)
    return [asdict(row) | {"per_second": round(row.rate, 1)} for row in rows]


def shown(found: dict[str, Any]) -> dict[str, Any]:
    """Print figures by name."""
    for name, value in found.items():
        print(f"{name:30} {value}")
    return found


if __name__ == "__main__":
    sys.exit(main())
