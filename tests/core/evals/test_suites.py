import json
import subprocess
import sys

import pytest

from core.evals.suites import resolve_suite
from core.recipes.evaluation import SuiteSpec
from core.tasks.items import Item, ItemError, ItemSet

SUMS = {"size": 30, "min_terms": 2, "max_terms": 2}
HELD = ItemSet(tuple(Item(f"h{n}", f"p{n}", "1", "math") for n in range(4)), "x/holdout", "math", split="holdout")


def resolve(spec, **options):
    return resolve_suite(spec, **{"data_dir": None, "seed": 1, "max_tokens": 16, **options})


def test_a_bare_name_is_greedy_and_holdout_is_the_runs_own_items():
    suite = resolve("holdout", holdout=HELD, stop=("\n",))
    assert suite.items is HELD
    assert (suite.mode, suite.samples, suite.params.max_tokens, suite.params.stop) == ("greedy", 1, 16, ("\n",))
    with pytest.raises(ItemError, match="held-out items"):
        resolve("holdout")


def test_a_block_samples_and_takes_a_seeded_part_in_order():
    block = SuiteSpec(suite="reasoning_gym:chain_sum", n=4, items=10, options=SUMS)
    suite, again = resolve(block), resolve(block)
    assert (suite.mode, suite.samples, suite.params.temperature, suite.params.top_p) == ("sampled", 4, 0.6, 0.95)
    assert suite == again
    indices = [item.meta["index"] for item in suite.items]
    assert indices == sorted(indices)
    assert len(indices) == 10
    with pytest.raises(ItemError, match="items is 31, but it has 30"):
        resolve(SuiteSpec(suite="reasoning_gym:chain_sum", items=31, options=SUMS))
    with pytest.raises(ItemError, match="leave n at 1"):
        resolve(SuiteSpec(suite="reasoning_gym:chain_sum", n=2, temperature=0, options=SUMS))


def test_a_file_of_the_items_folder_is_a_suite(tmp_path):
    (tmp_path / "mine.jsonl").write_text(json.dumps({"id": "a", "prompt": "p", "answer": "1"}) + "\n", encoding="utf-8")
    assert len(resolve("file:mine.jsonl", data_dir=tmp_path).items) == 1
    with pytest.raises(ItemError, match="DRIFTLINE_DATA"):
        resolve("math500")


def test_tasks_and_evals_import_no_torch():
    modules = [
        "core.tasks.sources",
        "core.tasks.splits",
        "core.tasks.pool",
        "core.tasks.rewards",
        "core.tasks.verifiers.math",
    ]
    modules += ["core.tasks.verifiers.gold", "core.evals.run", "core.evals.suites", "core.evals.comparison"]
    code = f"import sys, importlib; [importlib.import_module(m) for m in {modules!r}]; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
