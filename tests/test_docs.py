"""What the documentation says exists: links, files, make targets, recipes. Its commands run in tests/service."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.recipes import parse_recipe

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "recipes" / "README.md"]
DRIFTLINE = ".venv/bin/driftline "


def indented(page: Path) -> Iterator[str]:
    """Lines of code blocks, which are indented by four spaces."""
    return (line.strip() for line in page.read_text().splitlines() if line.startswith("    "))


def commands() -> list[list[str]]:
    lines = [line.split("#")[0] for page in PAGES for line in indented(page)]
    return [line.split()[1:] for line in lines if line.startswith(DRIFTLINE)]


def recipes() -> list[str]:
    blocks = [block for page in PAGES for block in re.findall(r"(?:^    .*\n)+", page.read_text(), re.MULTILINE)]
    return [block for block in blocks if block.strip().startswith('{"kind"')]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_make_target_that_is_named_exists() -> None:
    named = {
        word
        for page in PAGES
        for line in indented(page)
        if line.startswith("make ")
        for word in line.split("#")[0].split()[1:]
    }
    assert named >= {"demo", "test"}
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert named <= targets


def test_every_recipe_on_a_page_is_accepted() -> None:
    assert len(recipes()) >= 3
    for block in recipes():
        parse_recipe(json.loads(block))


def test_every_recipe_file_that_is_named_exists() -> None:
    for words in commands():
        for word in words:
            if word.endswith(".json"):
                assert (ROOT / word).is_file(), f"{word} is not there"


@pytest.mark.slow
def test_every_command_that_is_named_exists() -> None:
    for name in {words[0] for words in commands()}:
        shown = subprocess.run(
            [ROOT / ".venv" / "bin" / "driftline", name, "--help"], capture_output=True, text=True, check=False
        )
        assert shown.returncode == 0, shown.stderr
