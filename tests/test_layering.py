"""Dependencies point downwards, and light processes stay light. The rules are those of the architecture page."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BASE = {"core.settings", "core.streams", "core.home", "core.syntax"}
STORE = BASE | {"core.recipes", "core.store"}
MIDDLE = {"core.damage", "core.prespec", "core.planning", "core.rl", "core.engines", "core.tasks", "core.jobs"}
ALLOWED: dict[str, set[str]] = {
    "core.settings": set(),
    "core.home": set(),
    "core.streams": set(),
    "core.syntax": set(),
    "core.rl": set(),
    "core.recipes": BASE,
    "core.store": BASE,
    "core.damage": BASE,
    "core.prespec": BASE,
    "core.planning": BASE | {"core.recipes"},
    "core.tasks": STORE,
    "core.engines": STORE,
    "core.jobs": STORE,
    "core.evals": STORE | MIDDLE,
    "core.dynamics": STORE | MIDDLE,
    "core.train": STORE | MIDDLE | {"core.evals", "core.dynamics"},
    "core.weights": STORE | MIDDLE | {"core.evals", "core.train"},
    "worker": STORE | MIDDLE | {"core.train", "core.evals", "core.dynamics", "core.weights"},
    "api": STORE | MIDDLE | {"core.train", "core.evals", "core.dynamics", "core.weights", "worker"},
    "client": BASE | {"core.store", "core.recipes", "core.tasks", "worker"},  # core.tasks for `driftline grade` alone
}
LIGHT = [
    "api.app",
    "worker.app",
    "worker.tasks",
    "worker.supervisor",
    "client.cli",
    "core.recipes",
    "core.planning.plan",
]


def package_of(module: str) -> str:
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "core" and len(parts) > 1 else parts[0]


def modules() -> Iterator[tuple[str, Path]]:
    for top in ("core", "api", "worker", "client"):
        for path in sorted((ROOT / top).rglob("*.py")):
            yield ".".join(path.relative_to(ROOT).with_suffix("").parts), path


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), level=0, names=names):
                # "from core import store" names the package only through its alias.
                yield from ([f"{module}.{alias.name}" for alias in names] if module == "core" else [module])


@pytest.mark.parametrize(("module", "path"), list(modules()), ids=lambda value: value if isinstance(value, str) else "")
def test_no_import_points_upwards(module: str, path: Path) -> None:
    own = package_of(module)
    if own == "core.__init__":
        return
    ours = {package_of(name) for name in imports(path) if name.split(".")[0] in {"core", "api", "worker", "client"}}
    assert ours - {own} <= ALLOWED[own]


def test_only_the_store_and_migrations_write_sql() -> None:
    speakers = {"insert", "update", "delete", "text", "select"}
    for module, path in modules():
        if package_of(module) == "core.store":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sqlalchemy"):
                assert not speakers & {alias.name for alias in node.names}, f"{module} speaks SQL"


@pytest.mark.parametrize("module", LIGHT)
def test_light_processes_import_no_torch(module: str) -> None:
    code = f"import {module}, sys; print([name for name in ('torch', 'transformers', 'vllm') if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_no_source_file_is_long() -> None:
    long = [f"{path}: {lines}" for _, path in modules() if (lines := len(path.read_text().splitlines())) > 500]
    assert long == []
