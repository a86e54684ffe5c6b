// The plain page: polls the REST interface, shows the list of runs or one run. Text enters the page only as text nodes.

import { appendAnalysis } from "/web/analysis.js";
import { drawChart, formatNumber } from "/web/chart.js";
import { drawChanges, drawEvaluations } from "/web/evaluations.js";

const FINAL = new Set(["succeeded", "damage_stopped", "failed", "cancelled"]);
const POLL_MS = 4000;
const FIRST = ["reward", "loss", "kl", "entropy", "completions/mean_length", "grad_norm"]; // then the others by name
const HELDOUT = new Set(["heldout/accuracy", "heldout/delta"]);
const TOKEN = "driftline-token"; // kept for this tab only
const byId = (id) => document.getElementById(id);
const etags = new Map(); // path -> {etag, body}: an unchanged answer costs a 304 and no redrawing
let view = 0; // grows with every navigation, so that late answers of an older view are dropped
let timer = 0;

async function get(path) {
  const known = etags.get(path);
  const headers = known ? { "If-None-Match": known.etag } : {};
  const token = sessionStorage.getItem(TOKEN);
  if (token) headers.Authorization = `Bearer ${token}`;
  const response = await fetch(path, { headers, cache: "no-store" });
  if (response.status === 304) return { body: known.body, changed: false };
  const body = await response.json();
  if (!response.ok) throw Object.assign(new Error(body.error.message), { status: response.status });
  const etag = response.headers.get("ETag");
  if (etag) etags.set(path, { etag, body });
  return { body, changed: true };
}

function node(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

const cell = (content, className) => { const made = node("td", undefined, className); made.append(content); return made; };
const state = (name) => node("span", name.replaceAll("_", " "), `state state-${name}`);
const time = (iso) => (iso ? iso.slice(0, 16).replace("T", " ") : "");
const percent = (value) => (value === null || value === undefined ? "n/a" : `${(100 * value).toFixed(1)}\u00a0%`); // a number and its unit stay on one line
const points = (value) => (value === null || value === undefined ? "n/a" : `${value > 0 ? "+" : ""}${(100 * value).toFixed(1)}\u00a0points`);
const share = (value) => `${Number((100 * value).toPrecision(3))} %`;
const interval = (ci, write) => (ci && ci[0] !== null ? `[${write(ci[0])}, ${write(ci[1])}]` : "");

function progressText(run) {
  const { done, total, unit, phase } = run.progress;
  const amount = total ? `${done ?? 0} of ${total} ${unit ?? ""}`.trim() : "";
  return [phase && !FINAL.has(run.state) ? phase : "", amount].filter(Boolean).join(": ");
}

// Narrow screens show rows as blocks, and a row without its display has no meaning to a screen reader unless it is said.
function withRoles(row) {
  row.setAttribute("role", "row");
  for (const part of row.cells) part.setAttribute("role", "cell");
  return row;
}

// ---- the list of runs -------------------------------------------------------------------------------------------

function runRow(run) {
  const row = node("tr");
  const link = node("a", run.name || run.id);
  link.href = `#/runs/${run.id}`;
  const first = cell(link, "wrap");
  first.append(node("span", ` ${run.kind} ${run.id}`, "quiet mono"));
  row.append(first, cell(state(run.state)), cell(progressText(run)), cell(run.model || "", "wrap"), cell(time(run.created_at)));
  return withRoles(row);
}

async function showRuns(mine) {
  const { body } = await get("/runs?limit=50");
  if (mine !== view) return;
  const table = byId("runs-table").tBodies[0];
  const focused = document.activeElement?.getAttribute?.("href");
  table.replaceChildren(...body.data.map(runRow));
  if (focused) table.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
  byId("runs-empty").hidden = body.data.length > 0;
  byId("runs-table").hidden = body.data.length === 0;
  const more = byId("runs-more");
  more.hidden = !body.has_more;
  more.onclick = () => olderRuns(mine, body.next);
}

async function olderRuns(mine, cursor) {
  window.clearTimeout(timer); // whoever reads old runs keeps the list as it is until the next navigation
  const { body } = await get(`/runs?limit=50&after=${encodeURIComponent(cursor)}`);
  if (mine !== view) return;
  byId("runs-table").tBodies[0].append(...body.data.map(runRow));
  byId("runs-more").hidden = !body.has_more;
  byId("runs-more").onclick = () => olderRuns(mine, body.next);
}

// ---- one run ----------------------------------------------------------------------------------------------------

function facts(list, pairs) {
  list.replaceChildren(...pairs.filter(([, value]) => value).map(([label, value]) => {
    const group = node("div");
    group.append(node("dt", label), node("dd", value));
    return group;
  }));
}

function header(run) {
  document.title = `${run.name || run.id} - Driftline`;
  byId("run-title").replaceChildren(run.name || run.id, " ", state(run.state));
  const parent = run.parent_id ? `fork of ${run.parent_id}${run.parent_step === null ? "" : ` at step ${run.parent_step}`}` : "";
  const label = run.exploratory ? "exploratory" : "";
  byId("run-facts").textContent = [run.kind, run.id, run.model, `attempt ${run.attempt?.number ?? 0}`, parent, label, `created ${time(run.created_at)} UTC`].filter(Boolean).join(" · ");
  const waiting = run.queue ? `Waiting, place ${run.queue.position}: ${run.queue.why}` : "";
  const eta = run.eta ? `about ${Math.max(1, Math.round(run.eta.seconds / 60))} min left (${run.eta.basis})` : "";
  byId("run-liveness").textContent = [progressText(run), waiting || run.liveness.reason, eta].filter(Boolean).join(" · ");
  const bar = byId("run-progress");
  bar.hidden = !run.progress.total;
  bar.max = run.progress.total || 1;
  bar.value = run.progress.done || 0;
  bar.setAttribute("aria-label", progressText(run) || "no progress yet");
  const error = byId("run-error");
  error.hidden = !run.error;
  if (run.error) error.replaceChildren(node("strong", `${run.error.category ?? ""} error ${run.error.code ?? ""}`), node("p", run.error.message ?? ""), ...(run.error.log_tail ? [node("pre", run.error.log_tail)] : []));
}

function damage(status, looks) {
  byId("damage").hidden = false;
  byId("damage-title").replaceChildren("Damage stop ", state(status.state));
  byId("damage-statement").textContent = status.statement;
  const { base, current, paired, evidence, rule } = status;
  const statistic = evidence?.statistic?.replaceAll("_", "-") ?? "";
  facts(byId("damage-facts"), [
    ["Base accuracy", base ? `${percent(base.accuracy)} ${interval(base.ci, percent)}` : ""],
    ["Base against itself (noise floor)", base ? percent(base.noise_floor) : ""],
    ["Current accuracy", current ? `${percent(current.accuracy)} ${interval(current.ci, percent)}, step ${current.step}` : ""],
    ["Lost / gained", paired ? `${formatNumber(paired.lost)} / ${formatNumber(paired.gained)} of ${paired.n} items` : ""],
    ["Paired difference", paired ? `${points(paired.delta)} ${interval(paired.ci, points)}` : ""],
    ["Evidence", evidence && evidence.value !== null ? `${statistic}: ${formatNumber(evidence.value)}, decides ${evidence.decides} ${formatNumber(evidence.threshold)}` : ""],
    ["Rule", rule ? `${rule.rule ?? rule.name ?? ""}, ${status.action ?? "no action"}` : "off"],
    ["Next look", status.next_look_at_step === null ? "" : `step ${status.next_look_at_step}`],
  ]);
  const frozen = status.prespecified_at ? `Rule frozen ${time(status.prespecified_at)} UTC (${status.clock} clock), hash ${String(status.spec_hash).slice(0, 12)}` : "";
  const kind = status.confirmatory ? "confirmatory" : "exploratory";
  byId("damage-notes").textContent = [frozen, status.spec_hash ? kind : "", `Forgetting: ${status.forgetting}`].filter(Boolean).join(" · ");
  const own = looks.filter((look) => look.reference === "base");
  for (const id of ["chart-delta", "chart-evidence"]) byId(id).hidden = own.length === 0;
  if (own.length === 0) return;
  const note = (look) => `${formatNumber(look.lost)} lost, ${formatNumber(look.gained)} gained of ${look.n}`;
  drawChart(byId("chart-delta"), {
    title: "Held-out accuracy at each look", help: "Greedy, 95 % interval; each look draws its own items, so neighbours differ by luck.", dots: true, write: share,
    points: own.map((look) => ({ x: look.step, y: look.accuracy, low: look.ci?.[0], high: look.ci?.[1], note: note(look) })),
    lines: base && base.accuracy !== null ? [{ y: base.accuracy, label: "base" }] : [],
    marks: own.map((look) => ({ kind: "look", step: look.step })),
  });
  const threshold = evidence && evidence.threshold;
  drawChart(byId("chart-evidence"), {
    title: statistic ? `Evidence of damage: ${statistic}` : "Evidence of damage", help: "The frozen rule's statistic and the threshold it acts at.", dots: true,
    points: own.filter((look) => look.statistic !== null).map((look) => ({ x: look.step, y: look.statistic, note: look.decided ? "decided" : "" })),
    lines: threshold ? [{ y: threshold, label: "threshold" }] : [], marks: own.map((look) => ({ kind: "look", step: look.step })),
  });
}

function lookRow(look) {
  const row = node("tr");
  const buttons = node("td");
  for (const flip of ["lost", "gained"]) {
    const button = node("button", `${formatNumber(look[flip])} ${flip}`, flip);
    button.type = "button";
    button.setAttribute("aria-label", `Show the items ${flip} at step ${look.step}: ${formatNumber(look[flip])} ${flip}`);
    button.onclick = () => showItems(look, flip, null);
    buttons.append(button, " ");
  }
  const limit = look.statistic === null ? "" : `${formatNumber(look.statistic)} / ${formatNumber(look.threshold)}${look.decided ? " decided" : ""}`;
  row.append(cell(String(look.step)), cell(`${percent(look.accuracy)} ${interval(look.ci, percent)}`, "fold"), buttons, cell(limit, "fold"),
    cell(`${look.n} of ${look.suite}, against ${look.reference}`, "wrap"));
  return withRoles(row);
}

function looksTable(looks) {
  byId("looks").hidden = looks.length === 0;
  const table = byId("looks-table").tBodies[0];
  const shown = looks.map((look) => look.id).join();
  if (table.dataset.shown === shown) return; // nothing new: the reader's focus and place stay
  table.dataset.shown = shown;
  table.replaceChildren(...looks.toReversed().map(lookRow));
}

function itemEntry(item, flip) {
  const entry = node("li", undefined, `${flip}-item`);
  entry.append(node("strong", item.item_id, "mono"), ` base: ${item.base_verdict ?? "not asked"}, now: ${item.verdict}${item.reason ? ` (${item.reason})` : ""}; answer read: ${item.extracted ?? "none"}; expected: ${item.gold ?? "n/a"}; ended by ${item.finish_reason}`);
  entry.append(node("pre", item.text));
  return entry;
}

async function showItems(look, flip, cursor) {
  const mine = view;
  const after = cursor ? `&after=${encodeURIComponent(cursor)}` : "";
  const { body } = await get(`/evals/${look.evaluation_id}/items?flip=${flip}&limit=20${after}`);
  if (mine !== view) return;
  const list = byId("items-list");
  const entries = body.data.map((item) => itemEntry(item, flip));
  byId("items").hidden = false;
  byId("items-title").textContent = `Items ${flip} at step ${look.step} (${look.suite})`;
  if (cursor) list.append(...entries); else list.replaceChildren(...(entries.length ? entries : [node("li", `No item was ${flip}.`)]));
  const more = byId("items-more");
  more.hidden = !body.has_more;
  more.onclick = () => showItems(look, flip, body.next);
  if (!cursor) byId("items-title").focus();
}

function curves(body) {
  const grid = byId("curves-grid");
  const place = (key) => (FIRST.includes(key) ? FIRST.indexOf(key) : FIRST.length);
  const keys = Object.keys(body.curves).filter((key) => !HELDOUT.has(key)).sort((a, b) => place(a) - place(b)); // stable, so by name
  byId("curves").hidden = keys.length === 0;
  const known = new Map([...grid.children].map((figure) => [figure.dataset.key, figure]));
  if (keys.join() !== [...known.keys()].join()) grid.replaceChildren(...keys.map((key) => known.get(key) ?? emptyFigure(key)));
  for (const figure of grid.children) {
    const key = figure.dataset.key;
    const curve = body.curves[key];
    const thinned = curve.shown < curve.total ? ` Shown: ${curve.shown} of ${curve.total} points.` : "";
    drawChart(figure, { title: key, unit: curve.unit, help: curve.help + thinned, marks: body.marks, points: curve.points.map(([x, y, , bad]) => ({ x, y, bad })) });
  }
}

function emptyFigure(key) {
  const figure = node("figure");
  figure.dataset.key = key;
  return figure;
}

// ---- runs that evaluate or analyse ------------------------------------------------------------------------------

async function evaluations(mine, path, regraded) {
  // A run that graded again shows the evaluation whose answers it graded.
  const { body } = await get(regraded ? `/evals/${regraded}` : `${path}/evals?limit=200`);
  if (mine === view) drawEvaluations(regraded ? [body] : body.data, (evaluation, regrade) => changes(evaluation, regrade, null));
}

async function changes(evaluation, regrade, cursor) {
  const mine = view;
  const after = cursor ? `&after=${encodeURIComponent(cursor)}` : "";
  const { body } = await get(`/evals/${evaluation.id}/items?changed_by=${regrade.id}&limit=20${after}`);
  if (mine !== view) return;
  drawChanges(evaluation, regrade, body.data, { first: !cursor, more: body.has_more ? () => changes(evaluation, regrade, body.next) : null });
}

async function analyses(mine, path) {
  const { body } = await get(`${path}/analyses?limit=50`);
  const list = byId("analyses-list");
  const known = new Set([...list.children].map((entry) => entry.dataset.id)); // a result never changes, so it is read once
  const fresh = await Promise.all(body.data.filter(({ id }) => !known.has(id)).map(({ id }) => get(`/analyses/${id}`)));
  if (mine !== view) return;
  byId("analyses").hidden = false;
  byId("analyses-empty").hidden = body.data.length > 0;
  for (const { body: analysis } of fresh) appendAnalysis(list, analysis);
}

async function showRun(mine, id) {
  const path = `/runs/${encodeURIComponent(id)}`;
  const { body: run } = await get(path);
  if (mine !== view) return true;
  header(run);
  if (run.kind === "train") {
    const [status, looks, series] = await Promise.all([get(`${path}/damage-stop`), get(`${path}/looks?limit=200`), get(`${path}/curves?max_points=400`)]);
    if (mine !== view) return true;
    if (status.changed || byId("damage").hidden) damage(status.body, looks.body.data);
    looksTable(looks.body.data);
    curves(series.body);
  }
  if (run.kind === "eval") await evaluations(mine, path, run.recipe.regrade);
  if (run.kind === "analysis") await analyses(mine, path);
  return FINAL.has(run.state);
}

// ---- navigation and polling -------------------------------------------------------------------------------------

async function poll(mine, id) {
  let done = false;
  try {
    if (id) done = await showRun(mine, id); else await showRuns(mine);
    if (mine === view) byId("connection").textContent = "";
  } catch (problem) {
    if (mine === view) byId("connection").textContent = problem.status ? problem.message : "The service does not answer; trying again.";
    done = problem.status >= 400 && problem.status < 500;
    byId("token-form").hidden = problem.status !== 401;
  }
  if (mine === view && !done) timer = window.setTimeout(() => poll(mine, id), document.hidden ? 4 * POLL_MS : POLL_MS);
}

function navigate() {
  view += 1;
  window.clearTimeout(timer);
  const id = location.hash.match(/^#\/runs\/([0-9a-f]+)$/)?.[1];
  byId("runs").hidden = Boolean(id);
  byId("run").hidden = !id;
  for (const part of ["damage", "looks", "curves", "items", "evaluations", "regrades", "changes", "analyses", "run-error", "run-progress", "token-form"]) byId(part).hidden = true;
  for (const part of ["runs-table", "looks-table"]) byId(part).tBodies[0].replaceChildren();
  byId("looks-table").tBodies[0].dataset.shown = "";
  byId("evaluations-table").dataset.shown = "";
  for (const part of ["curves-grid", "analyses-list", "run-facts", "run-liveness"]) byId(part).replaceChildren();
  byId("run-title").textContent = id ? `Run ${id}` : "";
  if (!id) document.title = "Driftline";
  byId("main").focus({ preventScroll: true });
  return poll(view, id);
}

byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN, byId("token").value.trim());
  byId("token-form").hidden = true;
  navigate();
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the hash names the view
  byId("main").focus();
});
window.addEventListener("hashchange", navigate);
navigate();
