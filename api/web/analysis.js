// One analysis for a reader: what it says first, then the numbers behind it, charts of stored numbers, probes as coloured text.
// It draws what it is given and fetches nothing.

import { drawChart, formatNumber } from "/web/chart.js";

const STRONG = 0.9; // quantile of |slope| from which a token has the fullest colour

function node(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

const percent = (value) => (value === null || value === undefined ? "n/a" : `${(100 * value).toFixed(1)}\u00a0%`);
const points = (value) => (value === null || value === undefined ? "n/a" : `${value > 0 ? "+" : ""}${(100 * value).toFixed(1)}\u00a0points`);

function facts(result) {
  const { excess, chance_band: band, r2, run_level: level, threshold, nulls } = result;
  const pairs = [];
  if (excess) {
    pairs.push(["Excess over chance", points(excess.share_above)], [`Share with R2 above ${formatNumber(threshold)}`, percent(r2.share_above)]);
    pairs.push(["Chance gives", percent(nulls[excess.over].share_above)], ["Range of one run's chance", band ? `${percent(band.low)} to ${percent(band.high)}` : ""]);
    pairs.push(["Median R2", formatNumber(r2.median)], ["Constant", `${formatNumber(r2.constant)} of ${formatNumber(r2.elements)}`]);
  }
  if (level) {
    pairs.push(["Effective rank", `${formatNumber(level.effective_rank)} of ${level.increments}`], ["Sign-flip p", formatNumber(level.sign_flip.p_value)]);
    pairs.push(["Drift t (a walk has 1)", formatNumber(level.drift_t)], [`Neighbouring increments' cosine (${level.lag_1.span} steps)`, formatNumber(level.lag_1.value)]);
  }
  const list = node("dl", undefined, "facts");
  for (const [label, value] of pairs.filter(([, shown]) => shown)) {
    const group = node("div");
    group.append(node("dt", label), node("dd", value));
    list.append(group);
  }
  return list;
}

// A chart measures the place that it is drawn in, so its figure is put there first.
function figureIn(grid) {
  const figure = node("figure");
  grid.append(figure);
  return figure;
}

function histogram(grid, result) {
  const shares = (counts) => { const total = counts.reduce((sum, count) => sum + count, 0) || 1; return counts.map((count, at) => ({ x: (at + 0.5) / counts.length, y: count / total })); };
  drawChart(figureIn(grid), { title: `R2 of ${result.noun}`, help: `Share of changed ${result.noun} per bin of R2. Chance alone has a histogram of its own, in the figures.`, points: shares(result.histogram), marks: [] });
}

function curveFigure(grid, curves) {
  const [[name, values], chance] = Object.entries(curves.series);
  const usual = chance ? chance[1].filter((value) => value !== null).toSorted((a, b) => a - b) : [];
  drawChart(figureIn(grid), {
    title: curves.title, unit: curves.unit, help: chance ? `The line is the median of ${chance[0]}.` : name, marks: [],
    points: curves.steps.map((x, at) => ({ x, y: values[at] })).filter(({ y }) => y !== null),
    lines: usual.length ? [{ y: usual[Math.floor(usual.length / 2)], label: "chance" }] : [],
  });
}

// Colour is the slope's sign and size in three steps; strength of the underline is R2. Both are in the title, too.
function probeText(probe) {
  const sizes = probe.slope.map(Math.abs).toSorted((a, b) => a - b);
  const full = sizes[Math.floor(STRONG * (sizes.length - 1))] || 1;
  const text = node("p", undefined, "probe");
  probe.tokens.forEach((token, at) => {
    const slope = probe.slope[at];
    const size = Math.min(3, Math.ceil((3 * Math.abs(slope)) / full));
    const shown = node("span", token, `${slope < 0 ? "falls" : "rises"}-${size} r2-${Math.min(3, Math.floor(4 * probe.r2[at]))}`);
    shown.title = `slope ${formatNumber(slope)} per step, R2 ${formatNumber(probe.r2[at])}, variance ${formatNumber(probe.variance[at])}`;
    text.append(shown);
  });
  const entry = node("details");
  entry.append(node("summary", `${probe.item}, sample ${probe.sample}${probe.left_out ? ` (${probe.left_out} more tokens in the table)` : ""}`), text);
  return entry;
}

function categories(found) {
  const table = node("table");
  const names = { high_variance_high_r2: "High variance, high R2", high_variance_low_r2: "High variance, low R2", low_variance: "Low variance" };
  for (const [key, label] of Object.entries(names)) {
    const row = node("tr");
    const top = found[key].top.slice(0, 12).map(({ text, count }) => `${JSON.stringify(text)} ${count}`).join(", ");
    row.append(node("th", label), node("td", percent(found[key].share)), node("td", top, "wrap"));
    table.append(row);
  }
  return table;
}

function terms(medians) {
  const list = node("dl", undefined, "facts");
  for (const [key, label] of [["w0_dx", "W0 dx"], ["dw_x0", "dW x0"], ["dw_dx", "dW dx"]]) {
    const group = node("div");
    group.append(node("dt", label), node("dd", percent(medians[key])));
    list.append(group);
  }
  return list;
}

function layers(grid, rows) {
  drawChart(figureIn(grid), { title: "R2 by layer", help: "Mean R2 of hidden states; 0 is the embedding.", dots: true, marks: [], points: rows.map(({ mean }, at) => ({ x: at, y: mean })).filter(({ y }) => y !== null) });
}

export function appendAnalysis(list, analysis) {
  const { result } = analysis;
  const entry = node("details", undefined, "analysis");
  entry.dataset.id = analysis.id;
  entry.open = true;
  list.append(entry);
  entry.append(node("summary", `${analysis.name} of run ${analysis.target_run_id ?? "?"}`));
  if (result.statement) entry.append(node("p", result.statement));
  if (result.excess) entry.append(facts(result));
  if (result.medians) entry.append(terms(result.medians));
  const grid = node("div", undefined, "grid");
  entry.append(grid);
  if (result.histogram) histogram(grid, result);
  if (result.layers) layers(grid, result.layers);
  for (const curves of Object.values(result.curves ?? {})) if (curves.steps.length) curveFigure(grid, curves);
  if (result.categories) entry.append(categories(result.categories));
  if (result.text) entry.append(node("p", "Red falls, blue rises; the underline is stronger where the token's path is straighter.", "quiet"), ...result.text.map(probeText));
  const all = node("details");
  all.append(node("summary", "All stored numbers"), node("pre", JSON.stringify(result, null, 1)));
  entry.append(all);
}
