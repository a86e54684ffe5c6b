"""The plain page in a real browser: a served api, a seeded database, and a runner played through the store."""

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, Locator, Page, Response, ViewportSize, expect, sync_playwright

from api.app import create_app
from conftest import CHROMIUM_NAMES
from core.settings import Settings
from core.store import evaluations, queue, runs, tokens
from core.store.bearer import token_hash
from core.store.database import Database
from core.store.states import RunState
from tests.api.conftest import Builder, FinishedRun
from tests.api.test_regrades import regraded
from tests.serving import Served, serve

pytestmark = [pytest.mark.browser, pytest.mark.slow]

WIDE: ViewportSize = {"width": 1280, "height": 900}
NARROW: ViewportSize = {"width": 390, "height": 844}
ERROR = {
    "category": "system",
    "code": "out_of_memory",
    "message": "the card ran out of memory at step 3",
    "log_tail": f"INFO start\nRuntimeError: {'a long line without end ' * 20}",
}
expect.set_options(timeout=30_000)


@dataclass
class Watch:
    """What a page did besides showing things."""

    complaints: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    answers: list[tuple[int, str]] = field(default_factory=list)

    def over(self, page: Page) -> Page:
        """Note complaints of the console, requests that leave the loopback interface, and answers."""
        page.on(
            "console", lambda said: self.complaints.append(said.text) if said.type in {"error", "warning"} else None
        )
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self._asked(request.url))
        page.on("response", lambda answer: self.answers.append((answer.status, urlsplit(answer.url).path)))
        return page

    def _asked(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "data" and parts.hostname != "127.0.0.1":
            self.foreign.append(url)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = next(found for name in CHROMIUM_NAMES if (found := shutil.which(name)))
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def served(empty_database: Path) -> Iterator[Served]:
    home = empty_database.parent
    with serve(create_app(Settings(home, f"sqlite:///{empty_database}", "redis://127.0.0.1:1/0"), sweep=False)) as made:
        yield made


@pytest.fixture
def url(served: Served, settings: Settings) -> str:
    """Address of an api on this test's home."""
    served.move_to(settings)
    return served.url


@pytest.fixture
def build(url: str, db: Database, settings: Settings) -> Iterator[Builder]:
    with httpx.Client(base_url=url, timeout=60) as http:  # a busy machine takes its time over the first request
        yield Builder(http, db, settings)  # type: ignore[arg-type]


@pytest.fixture
def finished(build: Builder) -> FinishedRun:
    return build.finished()


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def page(browser: Browser, url: str, watch: Watch) -> Iterator[Page]:
    """A page that must not complain and must not ask anybody but this machine."""
    context = browser.new_context(viewport=WIDE)
    yield watch.over(context.new_page())
    context.close()
    assert watch.complaints == []
    assert watch.foreign == []


def chart(page: Page, title: str) -> Locator:
    return page.locator("figure").filter(has=page.locator("figcaption span", has_text=re.compile(f"^{title}")))


def progress(db: Database, fence: Any, step: int) -> None:
    with db.fenced(fence) as session:
        runs.progress(session, fence, phase="train", done=step, total=12, unit="steps", step=step)


def test_runs_are_listed_newest_first_and_a_new_one_appears_by_itself(page: Page, url: str, build: Builder) -> None:
    for name in ("first", "second", "third"):
        build.queued(name=name)
    page.goto(url)
    links = page.locator("#runs-table tbody a")
    expect(links).to_have_text(["third", "second", "first"])
    build.queued(name="fourth")
    expect(links).to_have_text(["fourth", "third", "second", "first"])
    expect(page.locator("#runs-table tbody tr").first).to_contain_text("queued")


def test_a_service_without_runs_says_how_to_begin(page: Page, url: str) -> None:
    page.goto(url)
    expect(page.get_by_text("No run yet")).to_be_visible()
    expect(page.locator("#runs-table")).to_be_hidden()


def test_a_run_shows_its_damage_stop_and_curves_with_looks_and_base(
    page: Page, url: str, finished: FinishedRun
) -> None:
    status = httpx.get(f"{url}/runs/{finished.id}/damage-stop").json()
    page.goto(url)
    page.get_by_role("link", name="small").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("small succeeded")
    expect(page.locator("#damage-statement")).to_have_text(status["statement"])
    expect(page.locator("#damage-title")).to_have_text("Damage stop no damage shown")

    accuracy = chart(page, "Held-out accuracy")
    expect(accuracy.locator(".c-base-text")).to_have_text("base")
    expect(accuracy.locator(".c-dot")).to_have_count(2)
    expect(accuracy.locator(".m-look title")).to_have_text(["look at step 4", "look at step 8"])
    reward = chart(page, "reward")
    expect(reward.locator(".c-line")).to_have_attribute("d", re.compile(r"^M[\d.]+ [\d.]+L[\d.]+ [\d.]+M"))  # a gap
    expect(reward.locator(".c-bad")).to_have_count(1)
    expect(reward.locator(".m-look title")).to_have_text(["look at step 4", "look at step 8"])
    expect(reward.locator(".m-checkpoint")).to_have_count(2)
    expect(reward.locator("output")).to_have_text("step 8: 0.75")


def test_lost_and_gained_items_are_shown_with_their_text(page: Page, url: str, finished: FinishedRun) -> None:
    page.goto(f"{url}/#/runs/{finished.id}")
    # Base 1111111100, at step 8 1110110111: items 3 and 6 were lost, 8 and 9 gained.
    page.get_by_role("button", name="Show the items lost at step 8: 2 lost").click()
    entries = page.locator("#items-list li")
    expect(entries.locator("strong")).to_have_text(["item-3", "item-6"])
    expect(entries.first).to_contain_text("base: correct, now: wrong")
    expect(entries.first.locator("pre")).to_have_text("answer 3")
    expect(page.locator("#items-title")).to_be_focused()
    page.get_by_role("button", name="Show the items gained at step 8").click()
    expect(entries.locator("strong")).to_have_text(["item-8", "item-9"])


def test_an_open_run_is_polled_with_its_etag_and_changes_without_a_reload(
    page: Page, url: str, build: Builder, db: Database, watch: Watch
) -> None:
    fence = build.running()
    build.points(fence, "reward", [0.25, 0.5])
    progress(db, fence, 2)
    base = build.evaluation(fence, 0, "base", "1111111100")
    build.evaluation(fence, 0, "base_repeat", "1111111100")

    def unchanged(answer: Response) -> bool:
        return answer.status == 304 and answer.url.endswith("/damage-stop")

    with page.expect_response(unchanged):
        page.goto(f"{url}/#/runs/{fence.run_id}")
    page.evaluate("window.stillHere = true")
    expect(page.locator("#damage-title")).to_contain_text("not started")
    expect(chart(page, "reward").locator("output")).to_have_text("step 2: 0.5")
    chart(page, "reward").locator("svg").focus()

    build.points(fence, "reward", [1.0], first=3)
    progress(db, fence, 3)
    expect(chart(page, "reward").locator("output")).to_have_text("step 3: 1")
    expect(page.locator("#run-liveness")).to_contain_text("3 of 12 steps")
    expect(chart(page, "reward").locator("svg")).to_be_focused()

    now = build.evaluation(fence, 4, "look", "0000011100")
    build.look(fence, 4, 1, now, "1111111100", "0000011100", state="damaged", decided=True, statistic=21.5)
    expect(page.locator("#damage-title .state")).to_have_text("damaged")
    expect(page.locator("#damage-statement")).to_contain_text("5 of 10 items were lost")
    expect(page.locator("#looks-table tbody tr")).to_have_count(1)
    with db.fenced(fence) as session:
        queue.finish(session, fence, state=RunState.DAMAGE_STOPPED, reason="damage shown")
    expect(page.locator("#damage-title .state")).to_have_text("stopped")
    expect(page.locator("#run-title .state")).to_have_text("damage stopped")
    assert page.evaluate("window.stillHere") is True
    assert base
    assert {status for status, _ in watch.answers} == {200, 304}


def test_it_works_by_keyboard_alone(page: Page, url: str, finished: FinishedRun) -> None:
    page.goto(url)
    link = page.get_by_role("link", name="small")
    expect(link).to_be_visible()
    page.keyboard.press("Tab")
    expect(link).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text("small")
    reward = chart(page, "reward")
    expect(reward).to_be_visible()
    expect(page.locator("#main")).to_be_focused()
    for _ in range(20):
        page.keyboard.press("Tab")
        if reward.locator("svg").evaluate("node => node === document.activeElement"):
            break
    expect(reward.locator("svg")).to_be_focused()
    for key, read in (("Home", "step 1: 0.25"), ("ArrowRight", "step 2: 0.5"), ("ArrowRight", "step 3: nan")):
        page.keyboard.press(key)
        expect(reward.locator("output")).to_have_text(read)
    page.keyboard.press("Tab")
    expect(reward.locator("output")).to_have_text("step 8: 0.75")
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    expect(page.locator("#run-title")).to_contain_text("small")


def failed(build: Builder) -> str:
    fence = build.running()
    with build.db.fenced(fence) as session:
        queue.finish(session, fence, state=RunState.FAILED, reason="out of memory", error=ERROR)
    return fence.run_id


def evaluated(build: Builder) -> str:
    model = build.finished().id
    recipe = {"kind": "eval", "model": f"run:{model}/last", "suites": ["holdout"], "device": {"kind": "cpu"}}
    run_id: str = build.client.post("/runs", json=recipe).json()["id"]
    fence = build.claimed(run_id)
    build.evaluation(fence, 0, "eval", "1101")
    build.finish(fence)
    return run_id


def measured(build: Builder) -> tuple[str, str]:
    """A finished run of a sampled evaluation with everything that is measured, and one later grading."""
    model = build.finished().id
    recipe = {"kind": "eval", "model": f"run:{model}/last", "suites": ["holdout"], "device": {"kind": "cpu"}}
    run_id: str = build.client.post("/runs", json=recipe).json()["id"]
    fence = build.claimed(run_id)
    made = build.evaluation(fence, 0, "eval", "1110", mode="sampled", samples=4)
    passes = {
        k: {"mean": mean, "standard_error": 0.1, "ci": None, "items": 4}
        for k, mean in (("1", 0.75), ("2", 0.8), ("4", 0.9))
    }
    with build.db.write() as session:
        row = evaluations.get(session, made)
        row.truncated_share, row.no_answer_share, row.mean_tokens = 0.25, 0.125, 1234.4
        row.measures = {"standard_error": 0.031, "clusters": 2, "pass_at_k": passes}
    regraded(build, fence, made, "1100", "math/9")
    build.finish(fence)
    return run_id, made


def analysed(build: Builder) -> str:
    target = build.finished().id
    recipe = {"kind": "analysis", "run": f"run:{target}", "compute": ["weight_linearity"]}
    run_id: str = build.client.post("/runs", json=recipe).json()["id"]
    fence = build.claimed(run_id)
    build.analysis(fence, target)
    build.finish(fence)
    return run_id


def queued(build: Builder) -> str:
    return str(build.queued(name="a-name-that-is-as-long-as-names-of-experiments-come-to-be")["id"])


def test_a_run_without_looks_shows_no_empty_charts(page: Page, url: str, build: Builder) -> None:
    page.goto(f"{url}/#/runs/{queued(build)}")
    expect(page.locator("#damage-statement")).to_contain_text("No look has been made yet")
    expect(page.locator("#run-liveness")).to_contain_text("Waiting, place 1")
    for part in ("#chart-delta", "#chart-evidence", "#looks", "#curves"):
        expect(page.locator(part)).to_be_hidden()


def test_a_failed_run_shows_its_error_and_the_end_of_its_log(page: Page, url: str, build: Builder) -> None:
    page.goto(f"{url}/#/runs/{failed(build)}")
    error = page.locator("#run-error")
    expect(error).to_contain_text("system error out_of_memory")
    expect(error).to_contain_text("the card ran out of memory at step 3")
    expect(error.locator("pre")).to_have_text(re.compile("RuntimeError"))


def test_an_evaluation_shows_its_suites(page: Page, url: str, build: Builder) -> None:
    page.goto(f"{url}/#/runs/{evaluated(build)}")
    expect(page.locator("#evaluations-table tbody tr")).to_have_text(re.compile(r"holdout, greedy.*75\.0\s%"))
    expect(page.locator("#damage")).to_be_hidden()


def test_an_evaluation_shows_its_measures_and_what_later_gradings_changed(page: Page, url: str, build: Builder) -> None:
    run_id, evaluation_id = measured(build)
    page.goto(f"{url}/#/runs/{run_id}")
    row = page.locator("#evaluations-table tbody tr")
    cells = row.locator("td")
    expect(cells.nth(0)).to_have_text("holdout, 4 samples")
    expect(cells.nth(1)).to_have_text(
        "avg@4 75.0\u00a0% [65.0\u00a0%, 85.0\u00a0%], SE 3.1\u00a0points over 2\u00a0clusters"
    )
    expect(cells.nth(2)).to_have_text("@2\u00a080.0\u00a0%, @4\u00a090.0\u00a0%")
    expect(cells.nth(4)).to_have_text("25.0\u00a0%")
    expect(cells.nth(5)).to_have_text("12.5\u00a0%")
    expect(cells.nth(6)).to_have_text("1234")
    expect(page.locator("#regrades-table tbody tr")).to_have_text(re.compile(r"75\.0.*by 1.*50\.0.*1 of 4.*math/9"))
    expect(page.locator("#changes")).to_be_hidden()
    page.get_by_role("button", name="judges otherwise").click()
    expect(page.locator("#changes-title")).to_be_focused()
    expect(page.locator("#changes-list li")).to_have_text(re.compile(r"item-2 was correct, .*; now wrong \(again\)"))
    posted = build.client.post(f"/evals/{evaluation_id}/regrade").json()["id"]
    page.goto(f"{url}/#/runs/{posted}")
    expect(row).to_have_text(re.compile("holdout, 4 samples"))


def test_an_analysis_shows_its_result(page: Page, url: str, build: Builder) -> None:
    page.goto(f"{url}/#/runs/{analysed(build)}")
    expect(page.locator("#analyses-list summary").first).to_contain_text("weight_linearity")
    expect(page.locator("#analyses-list pre")).to_contain_text('"median": 0.9')


def test_a_run_that_does_not_exist_is_said_and_not_asked_for_again(page: Page, url: str, watch: Watch) -> None:
    page.goto(f"{url}/#/runs/ffffffffffff")
    expect(page.locator("#connection")).to_have_text("there is no run 'ffffffffffff'")
    expect(page.locator("#run-title")).to_have_text("Run ffffffffffff")
    assert [path for status, path in watch.answers if status == 404] == ["/runs/ffffffffffff"]
    watch.complaints.clear()  # the browser logs every 404


def test_names_and_answers_enter_as_text_and_the_policy_allows_no_inline_code(
    page: Page, url: str, build: Builder
) -> None:
    name = "<img src=x onerror=alert(1)>"
    build.queued(name=name)
    answer = page.goto(url)
    assert answer is not None
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    expect(page.locator("#runs-table tbody a")).to_have_text(name)
    expect(page.locator("img")).to_have_count(0)


def test_a_lost_service_is_said_and_its_return_is_noticed(page: Page, url: str, build: Builder, watch: Watch) -> None:
    build.queued(name="first")
    page.goto(url)
    expect(page.get_by_role("link", name="first")).to_be_visible()
    page.context.set_offline(True)
    expect(page.locator("#connection")).to_have_text("The service does not answer; trying again.")
    expect(page.get_by_role("link", name="first")).to_be_visible()
    page.context.set_offline(False)
    expect(page.locator("#connection")).to_have_text("")
    assert all("ERR_INTERNET_DISCONNECTED" in said for said in watch.complaints)
    watch.complaints.clear()


def test_a_service_with_tokens_asks_for_one(page: Page, url: str, build: Builder, db: Database, watch: Watch) -> None:
    build.queued(name="first")
    with db.write() as session:
        tokens.create(session, name="me", token_hash=token_hash("secret"), scope="read")
    page.goto(url)
    page.get_by_label("This service asks for a token").fill("secret")
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name="first")).to_be_visible()
    expect(page.locator("#token-form")).to_be_hidden()
    assert all("401" in said for said in watch.complaints)
    watch.complaints.clear()


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_runs_over_the_edge_and_everything_is_readable(
    browser: Browser, url: str, build: Builder, watch: Watch, size: ViewportSize, scheme: Literal["light", "dark"]
) -> None:
    makers: list[Callable[[Builder], str]] = [
        failed,
        evaluated,
        lambda made: measured(made)[0],
        analysed,
        lambda made: made.finished().id,
        queued,
    ]
    views = [f"#/runs/{make(build)}" for make in makers] + ["#/"]
    context = browser.new_context(viewport=size, color_scheme=scheme)
    page = watch.over(context.new_page())
    for view in views:
        page.goto("about:blank")  # so that the next view is loaded whole
        page.goto(f"{url}/{view}")
        expect(page.locator("section:visible .state").first).to_be_visible()
        page.wait_for_load_state("networkidle")
        assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0, view
        assert page.evaluate(FAINT) == [], view
        assert page.evaluate(SMALL) == [], view
    dark = page.evaluate("getComputedStyle(document.documentElement).backgroundColor.match(/\\d+/g).every(n => n < 60)")
    assert dark is (scheme == "dark")
    context.close()
    assert (watch.complaints, watch.foreign) == ([], [])


# Texts whose contrast with what is painted behind them is below 4.5 (WCAG 2, relative luminance of sRGB).
FAINT = """() => {
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const linear = (n) => (n <= 0.04045 ? n / 12.92 : ((n + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const paint = numbers(getComputedStyle(at).backgroundColor);
      if (paint.length < 4 || paint[3] > 0) return paint;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const node of document.querySelectorAll("main *, header *")) {
    const own = [...node.childNodes].some((child) => child.nodeType === Node.TEXT_NODE && child.data.trim());
    if (!own || !node.checkVisibility() || node.tagName === "title") continue;
    const style = getComputedStyle(node);
    const ink = light(numbers(node instanceof SVGElement ? style.fill : style.color));
    const paper = light(behind(node));
    if ((Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05) < 4.5) found.push(`${node.tagName}: ${node.textContent}`);
  }
  return found;
}"""
# Letters in charts that are drawn less than 11 pixels high, or over the edge of their chart, or over each other.
SMALL = """() => {
  const inside = (box, edge) => box.left >= edge.left - 1 && box.right <= edge.right + 1;
  const meet = (a, b) => a.left < b.right && b.left < a.right && a.top + 2 < b.bottom - 2 && b.top + 2 < a.bottom - 2;
  const found = [];
  for (const svg of document.querySelectorAll("figure svg")) {
    if (!svg.checkVisibility()) continue;
    const edge = svg.getBoundingClientRect();
    const boxes = [...svg.querySelectorAll("text")].map((node) => node.getBoundingClientRect());
    boxes.forEach((box, i) => {
      if (box.height < 11 || !inside(box, edge) || boxes.some((other, j) => j < i && meet(box, other)))
        found.push(svg.querySelectorAll("text")[i].textContent);
    });
  }
  return found;
}"""
