"""What vLLM finds of this project: an entry point that costs nothing to import."""

import subprocess
import sys
from importlib.metadata import entry_points

from core.engines import extrapolated_plugin


def test_vllm_finds_the_plugin_by_its_entry_point() -> None:
    ours = [point for point in entry_points(group="vllm.general_plugins") if point.value.startswith("core.")]
    assert [point.load() for point in ours] == [extrapolated_plugin.register]


def test_importing_the_plugin_loads_nothing_heavy() -> None:
    """vLLM imports it in each of its processes, and whoever lists entry points may do so without vLLM."""
    code = (
        "import sys, core.engines.extrapolated_plugin; "
        "print(sorted({'torch', 'vllm', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
