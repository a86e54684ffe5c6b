// Evaluations for a reader: what was asked, what came out and how sure that is, and what later gradings changed.
// It draws what it is given and fetches nothing; whoever asks for a grading's changes is told by a call.

const byId = (id) => document.getElementById(id);
const percent = (value) => (value === null || value === undefined ? "n/a" : `${(100 * value).toFixed(1)}\u00a0%`);
const interval = (ci) => (ci && ci[0] !== null ? ` [${percent(ci[0])}, ${percent(ci[1])}]` : "");

function node(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function tableRow(cells) {
  const row = node("tr");
  row.setAttribute("role", "row");
  for (const [content, className] of cells) {
    const cell = node("td", undefined, className);
    cell.setAttribute("role", "cell");
    cell.append(content);
    row.append(cell);
  }
  return row;
}

function error(evaluation) {
  const { standard_error: value, clusters } = evaluation.measures ?? {};
  if (value === null || value === undefined) return "";
  const unit = clusters < evaluation.n_items ? "clusters" : "items";
  return `, SE ${(100 * value).toFixed(1)}\u00a0points over ${clusters}\u00a0${unit}`;
}

function accuracy(evaluation) {
  if (evaluation.accuracy === null) return evaluation.status;
  const name = evaluation.mode === "greedy" ? "" : `avg@${evaluation.samples} `;
  return `${name}${percent(evaluation.accuracy)}${interval(evaluation.ci)}${error(evaluation)}`;
}

function passAtK(evaluation) {
  const found = Object.entries(evaluation.measures?.pass_at_k ?? {}).filter(([k]) => k !== "1"); // pass@1 is the accuracy
  return found.map(([k, { mean }]) => `@${k}\u00a0${percent(mean)}`).join(", ");
}

function evaluationRow(evaluation) {
  const asked = evaluation.mode === "greedy" ? "greedy" : `${evaluation.samples} samples`;
  const tokens = evaluation.mean_tokens === null ? "" : String(Math.round(evaluation.mean_tokens));
  return tableRow([
    [`${evaluation.suite}, ${asked}`, "fold"], [accuracy(evaluation), "fold"], [passAtK(evaluation), "fold"], [String(evaluation.n_items ?? "")],
    [percent(evaluation.truncated_share)], [percent(evaluation.no_answer_share)], [tokens], [evaluation.model_ref ?? "", "wrap"],
  ]);
}

function regradeRow(evaluation, regrade, showChanges) {
  const asked = evaluation.mode === "greedy" ? "greedy" : `${evaluation.samples} samples`;
  const button = node("button", `${regrade.changed} of ${regrade.records}`);
  button.type = "button";
  button.setAttribute("aria-label", `Show the ${regrade.changed} answers of ${evaluation.suite}, ${asked}, that ${regrade.verifier_version} judges otherwise`);
  button.onclick = () => showChanges(evaluation, regrade);
  return tableRow([
    [`${evaluation.suite}, ${asked}`, "fold"], [`${percent(evaluation.accuracy)} by ${evaluation.verifier_version ?? "n/a"}`, "fold"],
    [`${percent(regrade.accuracy)}${interval(regrade.ci)}`, "fold"], [button], [`${regrade.verifier_version}, ${regrade.finished_at.slice(0, 16).replace("T", " ")} UTC`, "wrap"],
  ]);
}

// Nothing is drawn anew while nothing has changed, so that the reader's focus and place stay.
export function drawEvaluations(evaluations, showChanges) {
  byId("evaluations").hidden = false;
  byId("evaluations-empty").hidden = evaluations.length > 0;
  byId("evaluations-table").hidden = evaluations.length === 0;
  const later = evaluations.flatMap((evaluation) => evaluation.regrades.filter((one) => one.finished_at).map((one) => [evaluation, one]));
  const table = byId("evaluations-table");
  const shown = JSON.stringify(evaluations.map((one) => [one.id, one.status, one.regrades.map(({ id, finished_at: at }) => [id, at])]));
  if (table.dataset.shown === shown) return;
  table.dataset.shown = shown;
  table.tBodies[0].replaceChildren(...evaluations.map(evaluationRow));
  byId("regrades").hidden = later.length === 0;
  byId("regrades-table").tBodies[0].replaceChildren(...later.map(([evaluation, regrade]) => regradeRow(evaluation, regrade, showChanges)));
}

function changedEntry(item, regrade) {
  const now = item.regrades.find((one) => one.regrade_id === regrade.id);
  const entry = node("li", undefined, now.verdict === "correct" ? "gained-item" : "lost-item");
  const said = (one) => `${one.verdict}${one.reason ? ` (${one.reason})` : ""}, answer read: ${one.extracted ?? "none"}`;
  entry.append(node("strong", item.item_id, "mono"), item.sample ? ` sample ${item.sample}` : "", ` was ${said(item)}; now ${said(now)}; expected: ${item.gold || "n/a"}`);
  entry.append(node("pre", item.text));
  return entry;
}

// One page of the answers whose verdict a later grading changed; `more` is called for the next, null where there is none.
export function drawChanges(evaluation, regrade, items, { first, more }) {
  const entries = items.map((item) => changedEntry(item, regrade));
  byId("changes").hidden = false;
  byId("changes-title").textContent = `Answers of ${evaluation.suite} that ${regrade.verifier_version} judges otherwise`;
  const list = byId("changes-list");
  if (first) list.replaceChildren(...(entries.length ? entries : [node("li", "No verdict changed.")])); else list.append(...entries);
  byId("changes-more").hidden = more === null;
  byId("changes-more").onclick = more;
  if (first) byId("changes-title").focus();
}
