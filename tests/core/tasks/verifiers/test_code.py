"""Programs in the real sandbox: right ones pass, and no program passes by anything but computing the values."""

import base64
import json
import os
import pickle
import zlib
from pathlib import Path

import pytest

from core.tasks import sandbox
from core.tasks.item_tests import verifier_of
from core.tasks.items import Item, ItemError
from core.tasks.livecodebench import cases
from core.tasks.pool import Job, VerifierPool
from core.tasks.sandbox import Isolation, SandboxError
from core.tasks.sources import load_suite_items, parse_item, read_items
from core.tasks.verifiers import Outcome, code
from core.tasks.verifiers.code_output import same_output
from core.tasks.verifiers.gold import check_golds

SUM = {"type": "assert", "setup": "", "test_list": ["assert add(1, 2) == 3", "assert add(0, 1) == 1"], "cpu_s": 2}
EVEN = {
    "type": "humaneval",
    "entry_point": "is_even",
    "test": "def check(candidate):\n    assert candidate(2) == True\n    assert candidate(3) == False\n",
    "cpu_s": 2,
}
EVEN_PROMPT = 'def is_even(n: int) -> bool:\n    """Whether n is even."""\n'
DOUBLE = {"type": "stdio", "inputs": ["2\n", "5\n"], "outputs": ["4\n", "10\n"], "cpu_s": 2}


def item(tests, prompt="p", **more) -> Item:
    return Item("i", prompt, None, "code", tests=tests, **more)


def judged(tests, program, prompt="p"):
    return code.grade(item(tests, prompt), f"```python\n{program}\n```")


@pytest.fixture(autouse=True)
def _fresh_probe(monkeypatch):
    monkeypatch.delenv(sandbox.VARIABLE, raising=False)
    sandbox.probe.cache_clear()
    yield
    sandbox.probe.cache_clear()


def test_right_programs_pass_and_wrong_ones_fail_with_the_place():
    assert judged(SUM, "def add(a, b):\n    return a + b").verdict == Outcome.CORRECT
    wrong = judged(SUM, "def add(a, b):\n    return 3")
    assert (wrong.verdict, wrong.reason) == (Outcome.WRONG, "an assertion failed in test 2 of 2")
    assert judged(EVEN, "    return n % 2 == 0", EVEN_PROMPT).verdict == Outcome.CORRECT
    assert judged(EVEN, "    return True", EVEN_PROMPT).verdict == Outcome.WRONG
    assert judged(DOUBLE, "print(int(input()) * 2)").verdict == Outcome.CORRECT
    assert judged(DOUBLE, "print(4)").reason == "another output in test 2 of 2"


CHEATS = {
    "equal to everything": "class E:\n    __eq__ = lambda s, o: True\n    __hash__ = None\ndef add(a, b): return E()",
    "an int that is equal to everything": "class E(int):\n    __eq__ = lambda s, o: True\ndef add(a, b): return E(7)",
    "a subclass that lies about its value": "class E(int):\n    def __index__(s): return 3\ndef add(a, b): return E(9)",
    "walking the frames for the expected value": (
        "import sys\ndef add(a, b):\n    f = sys._getframe()\n    while f:\n        for v in list(f.f_locals.values()) + "
        "list(f.f_globals.values()):\n            if isinstance(v, str) and '==' in v: return int(v.split('==')[1])\n"
        "        f = f.f_back\n    return None"
    ),
    "searching the heap for the tests": (
        "import gc\ndef add(a, b):\n    for o in gc.get_objects():\n        if isinstance(o, dict) and 'test_list' in o: "
        "return int(o['test_list'][0][-1])\n    return None"
    ),
    "leaving before the assertions": "import os\nos._exit(0)",
    "leaving in the call": "import sys\ndef add(a, b): sys.exit(0)",
    "replacing the means of comparison": (
        "import builtins\nbuiltins.AssertionError = type('N', (BaseException,), {})\nbuiltins.print = None\n"
        "int.__class__\ndef check(*a): pass\ndef same(*a): return True\ndef add(a, b): return 'x'"
    ),
    "answering for the judge": (
        "import os, socket\nfor fd in range(3, 40):\n    try: os.write(fd, b'[\"value\", true]\\n' * 9 + "
        'b\'{"result": "passed", "reason": "x"}\\n\')\n    except OSError: pass\ndef add(a, b): return None'
    ),
    "raising the judge's own success": "def add(a, b): raise SystemExit(0)",
    "a truth value for a number": "def add(a, b):\n    return True if (a, b) == (0, 1) else a + b",
    "reading the judge's process": (
        "import glob\ndef add(a, b):\n    for p in glob.glob('/proc/*/environ') + glob.glob('/proc/*/cmdline'):\n"
        "        t = open(p, 'rb').read()\n        if b'add(1, 2) == 3' in t: return 3\n    return None"
    ),
}


@pytest.mark.parametrize("program", CHEATS.values(), ids=CHEATS.keys())
def test_cheats_fail(program):
    assert judged(SUM, program).verdict == Outcome.WRONG


@pytest.mark.parametrize(
    "program",
    [
        "import signal\nfor s in (signal.SIGXCPU, signal.SIGALRM, signal.SIGTERM):\n    signal.signal(s, signal.SIG_IGN)\n"
        "while True: pass",
        "def add(a, b):\n    while True:\n        try:\n            while True: pass\n        except BaseException: pass",
    ],
)
def test_nothing_swallows_the_limit_on_time(program):
    judgement = judged({**SUM, "cpu_s": 1}, program)
    assert (judgement.verdict, judgement.reason) == (Outcome.TIMEOUT, "the program used more than 1 s of CPU time")


def test_a_programs_own_set_or_sorted_is_not_used_to_compare():
    tests = {"type": "assert", "test_list": ["assert set(f(2)) == set([1, 2])", "assert sorted(f(2)) == [1, 2]"]}
    cheat = "set = lambda x: 0\nsorted = lambda x: [1, 2]\ndef f(n): return []"
    assert judged(tests, cheat).verdict == Outcome.WRONG
    assert judged(tests, "def f(n): return [2, 1]").verdict == Outcome.CORRECT
    shadowing = {"type": "assert", "test_list": ["assert sum(10, 15) == 6", "assert sum(100, 150) == 93"]}
    divisors = (
        "def sum(a, b):\n    t = 0\n    for i in range(1, a):\n        t += i * (a % i == b % i == 0)\n    return t"
    )
    assert judged(shadowing, divisors).verdict == Outcome.CORRECT


def test_a_helper_of_the_prompt_is_the_judges_own():
    prompt = 'def encode(s):\n    return s[::-1]\n\n\ndef decode(s: str):\n    """Undo encode."""\n'
    test = "def check(candidate):\n    for s in ('ab', 'xyz'):\n        assert candidate(encode(s)) == s\n"
    tests = {"type": "humaneval", "entry_point": "decode", "test": test}
    assert judged(tests, "    return s[::-1]", prompt).verdict == Outcome.CORRECT
    assert judged(tests, "def encode(s): return s\ndef decode(s): return s", prompt).verdict == Outcome.WRONG


def test_objects_functions_types_and_exceptions_pass_between_the_processes():
    tests = {
        "type": "assert",
        "setup": "import math\nroot = Node(1)\nroot.left = Node(2)",
        "test_list": [
            "assert depth(root) == 2",
            "assert apply(lambda x: x + 1, 4) == 5",
            "assert only([1, 'a'], str) == ['a']",
            "assert math.isclose(half(3), 1.5)",
            "assert list(lazily(3)) == [0, 1, 2]",
            "assert found('ab')",
            "assert not found('b')",
            "try:\n    half('x')\nexcept TypeError:\n    pass\nelse:\n    assert False",
        ],
    }
    program = (
        "class Node:\n    def __init__(s, v): s.v, s.left = v, None\n"
        "def depth(n): return 0 if n is None else 1 + depth(n.left)\ndef apply(f, x): return f(x)\n"
        "def only(xs, t): return [x for x in xs if isinstance(x, t)]\ndef half(x): return math.pi / math.pi * x / 2\n"
        "def lazily(n): return (i for i in range(n))\nimport re\ndef found(s): return re.search('a', s)\n"
    )
    judgement = judged(tests, program)
    assert judgement.verdict == Outcome.CORRECT, judgement.reason


def test_nothing_outside_can_be_read_written_or_reached(tmp_path):
    marker = tmp_path / "marker"
    program = (
        "import os, socket\n"
        "def tried(f):\n    try: f()\n    except OSError as e: return True\n    return False\n"
        f"def add(a, b):\n    ok = [tried(lambda: open({str(marker)!r}, 'w')), tried(lambda: open('/etc/passwd')),\n"
        "        tried(lambda: os.listdir('/work')), tried(lambda: open('/usr/x', 'w')), tried(lambda: open('/x', 'w')),\n"
        "        tried(os.fork), tried(lambda: os.memfd_create('m')), tried(lambda: os.unshare(0x10000000) if hasattr(os, "
        "'unshare') else open('/nowhere')),\n"
        "        tried(lambda: socket.create_connection(('127.0.0.1', 9), 1))]\n"
        "    return a + b if all(ok) else ok"
    )
    judgement = judged(SUM, program)
    assert judgement.verdict == Outcome.CORRECT, judgement.reason
    assert not marker.exists()


@pytest.mark.parametrize(
    "program",
    [
        "x = 'a' * (1 << 40)",
        "open('/tmp/fill', 'wb').write(b'0' * (1 << 28))",
        "def add(a, b): return [0] * 30_000_000",
        "def add(a, b):\n    x = []\n    for _ in range(100_000): x = [x]\n    return x",
        "def add(a, b): return iter(int, 1)",
        "def add(a, b): return add(a, b)",
    ],
)
def test_bombs_end_as_wrong_and_the_judge_goes_on(program):
    assert judged(SUM, program).verdict in {Outcome.WRONG, Outcome.TIMEOUT}
    assert judged(SUM, "def add(a, b): return a + b").verdict == Outcome.CORRECT


def test_tests_that_assert_nothing_are_no_verdict_and_never_registered():
    silent = {"type": "assert", "test_list": ["if False:\n    assert f() == 1"]}
    assert judged(silent, "def f(): return 1").verdict == Outcome.INFRA_ERROR
    for tests in (
        {"type": "assert", "test_list": []},
        {"type": "assert", "test_list": ["f()"]},
        {"type": "humaneval", "entry_point": "f", "test": "def check(candidate):\n    pass\n"},
        {"type": "stdio", "inputs": [], "outputs": []},
        {"type": "stdio", "inputs": ["1"], "outputs": []},
        {"type": "assert", "test_list": ["assert f() == 1"], "cpu_s": 0},
    ):
        with pytest.raises(ItemError, match=r"here: field 'tests\."):
            verifier_of(tests, where="here")


def test_a_program_gains_nothing_by_leading_the_tests_astray():
    looping = {"type": "assert", "test_list": ["for x in f():\n    assert x > 0"]}
    avoided = judged(looping, "def f(): return []")
    assert (avoided.verdict, avoided.reason) == (Outcome.WRONG, "no assertion was reached")
    picking = {"type": "assert", "test_list": ["assert f()['a'] == 1"]}
    for result in ("{}", "[]", "None", "{'a': [1]}", "object()"):
        assert judged(picking, f"def f(): return {result}").verdict == Outcome.WRONG, result
    raising = "def f(): raise {}"
    for kind in ("KeyError('a')", "SyntaxError('x')", "KeyboardInterrupt()", "GeneratorExit()", "AssertionError()"):
        assert judged(picking, raising.format(kind)).verdict == Outcome.WRONG, kind


def test_a_judge_that_was_killed_is_replaced():
    right = "def add(a, b): return a + b"
    assert judged(SUM, right).verdict == Outcome.CORRECT
    code._judge(Isolation.BUBBLEWRAP).process.kill()
    code._judge(Isolation.BUBBLEWRAP).process.wait()
    assert judged(SUM, right).verdict == Outcome.CORRECT


def test_a_missing_sandbox_judges_nothing(monkeypatch):
    monkeypatch.setattr(sandbox, "_bubblewrap", lambda: ("/nonexistent/bwrap",))
    judgement = judged(SUM, "def add(a, b): return a + b")
    assert judgement.verdict == Outcome.INFRA_ERROR
    assert "no sandbox" in judgement.reason


def test_a_missing_sandbox_is_found_before_anything_is_sampled(monkeypatch):
    monkeypatch.setenv(sandbox.VARIABLE, "hope")
    with VerifierPool(workers=1) as pool:
        with pytest.raises(RuntimeError, match=r"cannot be judged.*DRIFTLINE_CODE_ISOLATION is 'hope'"):
            check_golds([item(SUM)], pool)
        assert [one.verdict for one in pool.grade([Job(item(SUM), "x")] * 3)] == [Outcome.INFRA_ERROR] * 3


def test_a_sandbox_that_cannot_start_says_what_helps(monkeypatch):
    monkeypatch.setattr(sandbox, "_bubblewrap", lambda: ("/bin/false",))
    with pytest.raises(SandboxError, match=r"user namespaces.*DRIFTLINE_CODE_ISOLATION=rlimits"):
        sandbox.probe()


def test_resource_limits_alone_run_only_where_the_operator_says_so(monkeypatch):
    monkeypatch.setattr(sandbox, "_bubblewrap", lambda: ("/bin/false",))
    monkeypatch.setenv(sandbox.VARIABLE, "rlimits")
    assert sandbox.probe() is Isolation.RLIMITS
    assert "rlimits" in code.version()
    assert judged(SUM, "def add(a, b): return a + b").verdict == Outcome.CORRECT
    assert judged(SUM, CHEATS["walking the frames for the expected value"]).verdict == Outcome.WRONG
    assert judged({**SUM, "cpu_s": 1}, "while True: pass").verdict == Outcome.TIMEOUT
    code._judge(Isolation.RLIMITS).close()


def test_the_level_is_part_of_the_version_and_an_unknown_one_is_refused(monkeypatch):
    assert code.version().startswith("code/1+bubblewrap+python3.")
    monkeypatch.setenv(sandbox.VARIABLE, "hope")
    sandbox.probe.cache_clear()
    with pytest.raises(SandboxError, match="'hope'; allowed: bubblewrap or rlimits"):
        sandbox.probe()


@pytest.mark.parametrize(
    ("wanted", "printed", "decimal", "same"),
    [
        ("1 2\n3", "1 2  \n3\n\n", False, True),
        ("1 2", "1  2", False, True),
        ("1 2", "12", False, False),
        ("1\n2", "1 2", False, False),
        ("a", "A", False, False),
        ("", "\n\n", False, True),
        ("\n1", "1", False, False),
        ("0.50", "0.5", False, False),
        ("0.50", "0.5", True, True),
        ("0.50", "0.51", True, False),
        ("nan", "NaN", True, False),
        ("yes", "yes", True, True),
        ("1e2", "100", True, True),
    ],
)
def test_output_is_compared_by_the_stated_rule(wanted, printed, decimal, same):
    assert same_output(wanted, printed, decimal=decimal) is same


def test_a_script_gets_its_input_and_nothing_else():
    seen = (
        "import os, sys\nn = int(sys.stdin.readline())\nleaks = [k for k in os.environ if k.startswith(('DRIFT', 'HOME'))]\n"
        "fds = [fd for fd in os.listdir('/proc/self/fd') if int(fd) > 3]\nprint(n * 2 if not leaks else leaks)"
    )
    assert judged(DOUBLE, seen).verdict == Outcome.CORRECT
    failing = judged(DOUBLE, "print(int(input()) * 2)\nraise ValueError('afterwards')")
    assert failing.verdict == Outcome.WRONG
    assert "ValueError: afterwards" in failing.reason
    assert judged(DOUBLE, "print(int(input()) * 2)\nexit()").verdict == Outcome.CORRECT
    assert judged({**DOUBLE, "cpu_s": 1}, "while True: pass").verdict == Outcome.TIMEOUT


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("I do not know.", Outcome.NO_ANSWER),
        ("```python\n```", Outcome.NO_ANSWER),
        ("def add(a, b):\n    return a + b\n", Outcome.CORRECT),
        ("```python\nwrong\n```\nBetter:\n```\ndef add(a, b):\n    return a + b\n```\nDone.", Outcome.CORRECT),
        ("<think>```python\ndef add(a, b): return a + b\n```</think> no", Outcome.NO_ANSWER),
        ("```py\ndef add(a, b):\n    return a + b", Outcome.CORRECT),
        ("```python\ndef add(a, b)\n    return a + b\n```", Outcome.WRONG),
    ],
)
def test_the_last_block_behind_the_thinking_is_the_program(text, verdict):
    assert code.grade(item(SUM), text).verdict == verdict


@pytest.mark.parametrize(
    "text",
    [
        "    return n % 2 == 0\n",
        "\n    return n % 2 == 0\n\n\nprint(is_even(3) / 0)\n",
        "```python\ndef is_even(n):\n    return not n % 2\n```",
        "    if n < 0:\n        n = -n\n\n    return n % 2 == 0\ndef other():\n    broken(",
        EVEN_PROMPT + "    return n % 2 == 0",
    ],
)
def test_a_humaneval_completion_may_continue_the_prompt_or_write_the_function_anew(text):
    judgement = code.grade(item(EVEN, EVEN_PROMPT), text)
    assert judgement.verdict == Outcome.CORRECT, judgement.reason


def release_row(**changes):
    private = [{"input": "7\n", "output": "14\n", "testtype": "stdin"}]
    packed = base64.b64encode(zlib.compress(pickle.dumps(json.dumps(private)))).decode()
    public = json.dumps([{"input": "2\n", "output": "4\n", "testtype": "stdin"}])
    row = {
        "question_title": "Double", "question_content": "Print twice the number.", "platform": "own", "question_id": "d",
        "contest_id": "c", "contest_date": "2026-01-01", "starter_code": "", "difficulty": "easy",
        "public_test_cases": public, "private_test_cases": packed, "metadata": "{}",
    }  # fmt: skip
    return {**row, **changes}


def test_livecodebench_rows_with_packed_tests_are_judged(tmp_path):
    functional = json.dumps([{"input": "[1, 2]\n3", "output": "[4, 5]", "testtype": "functional"}])
    starter = "class Solution:\n    def shift(self, xs: List[int], k: int) -> List[int]:\n        "
    second = release_row(
        question_id="s", starter_code=starter, public_test_cases=functional, private_test_cases="",
        metadata=json.dumps({"func_name": "shift"}),
    )  # fmt: skip
    lines = "".join(json.dumps(row) + "\n" for row in (release_row(), second))
    (tmp_path / "livecodebench.jsonl").write_text(lines)
    double, shift = load_suite_items("livecodebench", tmp_path)
    assert (double.verifier, double.prompt) == ("code", "Print twice the number.")
    assert starter.strip() in shift.prompt
    assert [case.output for case in cases(double.tests)] == ["4\n", "14\n"]
    assert code.grade(double, "```\nprint(2 * int(input()))\n```").verdict == Outcome.CORRECT
    assert code.grade(double, "```\nprint(4)\n```").reason == "another output in test 2 of 2"
    method = "class Solution:\n    def shift(self, xs, k):\n        return {}\n"
    for result, verdict in (
        ("[x + k for x in xs]", Outcome.CORRECT),
        ("tuple(x + k for x in xs)", Outcome.CORRECT),
        ("xs", Outcome.WRONG),
        ("type('E', (), {'__eq__': lambda s, o: True})()", Outcome.WRONG),
        ("__import__('os')._exit(0)", Outcome.WRONG),
    ):
        assert code.grade(shift, f"```python\n{method.format(result)}```").verdict == verdict, result


def test_a_pickle_that_does_more_than_hold_a_string_is_refused_unrun(tmp_path):
    marker = tmp_path / "ran"

    class Attack:
        def __reduce__(self):
            return os.system, (f"touch {marker}",)

    packed = base64.b64encode(zlib.compress(pickle.dumps(Attack()))).decode()
    with pytest.raises(ItemError, match="does more than hold a string"):
        parse_item(json.dumps(release_row(private_test_cases=packed)), where="here")
    assert not marker.exists()
    with pytest.raises(ItemError, match="here: field 'private_test_cases' is neither"):
        parse_item(json.dumps(release_row(private_test_cases="%%%")), where="here")
    with pytest.raises(ItemError, match="hold no test"):
        parse_item(json.dumps(release_row(private_test_cases="", public_test_cases="[]")), where="here")
    one = json.dumps([{"input": "1", "output": "1", "testtype": "functional"}])
    with pytest.raises(ItemError, match="func_name"):
        parse_item(json.dumps(release_row(private_test_cases="", public_test_cases=one)), where="here")


def test_a_reference_program_that_fails_its_tests_refuses_the_data():
    with VerifierPool(workers=1) as pool:
        check_golds([item({**SUM, "reference": "def add(a, b): return a + b"}), item(SUM)], pool)
        with pytest.raises(ItemError, match="does not verify"):
            check_golds([item({**SUM, "reference": "def add(a, b): return a - b"})], pool)


@pytest.mark.slow
@pytest.mark.timeout(900)  # a thousand programs, one of which computes for a quarter of a minute
@pytest.mark.data
@pytest.mark.parametrize(("dataset", "count"), [("humaneval", 164), ("mbpp", 974), ("mbpp_sanitized", 427)])
def test_every_reference_solution_passes(dataset, count):
    items = read_items(Path(os.environ["DRIFTLINE_DATA"]) / f"{dataset}.jsonl", name=dataset)
    solutions = [one.meta.get("canonical_solution") or f"```python\n{one.meta['code']}\n```" for one in items]
    with VerifierPool(workers=2) as pool:
        verdicts = pool.grade([Job(one, text) for one, text in zip(items, solutions, strict=True)])
    failed = {one.id: verdict.reason for one, verdict in zip(items, verdicts, strict=True) if verdict.score != 1}
    assert not failed
    assert len(items) == count
