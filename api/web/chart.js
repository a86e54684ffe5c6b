// Small line charts as inline SVG: one value per step, a base line, whiskers, marks below the axis, and a cursor that
// arrow keys and the pointer move. It draws what it is given and fetches nothing.

const NS = "http://www.w3.org/2000/svg";
const HEIGHT = 190, LEFT = 52, RIGHT = 12, LABELS = 66, TOP = 8, BOTTOM = 34; // pixels; LABELS is room for the words of lines

export function formatNumber(value) {
  if (value === null || value === undefined) return "n/a";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(1);
  return String(Number(value.toPrecision(3)));
}

function element(name, attributes, text) {
  const node = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function ticks(low, high, wanted) {
  const rough = (high - low) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const size = [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough);
  const found = [];
  for (let value = Math.ceil(low / size) * size; value <= high + size * 1e-9; value += size) found.push(Number(value.toPrecision(12)));
  return found;
}

function span(values) {
  let low = Math.min(...values), high = Math.max(...values);
  if (low === high) { const pad = Math.abs(low) * 0.1 || 1; low -= pad; high += pad; }
  const margin = (high - low) * 0.06;
  return [low - margin, high + margin];
}

// spec: {title, help, unit, points: [{x, y, low, high, bad, note}], lines: [{y, label}], marks: [{kind, step}], dots, write}
// Drawing into the same figure again keeps the reader's place: focus, the step under the cursor, and what is read out.
export function drawChart(figure, spec) {
  const chart = charts.get(figure) || makeChart(figure);
  chart.spec = spec;
  chart.name.textContent = spec.unit ? `${spec.title} (${spec.unit})` : spec.title;
  chart.help.textContent = spec.help || "";
  draw(chart);
}

const charts = new WeakMap(); // figure -> {figure, name, help, readout, svg, spec, width, at}
const sizes = new ResizeObserver((entries) => {
  window.requestAnimationFrame(() => entries.forEach(({ target }) => {
    const chart = charts.get(target);
    if (chart?.spec && innerWidth(chart) !== chart.width) draw(chart);
  }));
});

function makeChart(figure) {
  const caption = document.createElement("figcaption");
  const chart = { figure, name: document.createElement("span"), help: document.createElement("p"), readout: document.createElement("output"), at: null, width: 0 };
  chart.svg = element("svg", { role: "img", tabindex: "0" });
  caption.append(chart.name, chart.readout);
  figure.replaceChildren(caption, chart.help, chart.svg);
  listen(chart);
  charts.set(figure, chart);
  sizes.observe(figure);
  return chart;
}

// One unit of the drawing is one pixel of the page, so that letters have the same size in every chart.
function innerWidth(chart) {
  return Math.round(chart.svg.getBoundingClientRect().width) || 420;
}

function draw(chart) {
  const { spec, svg } = chart;
  chart.width = innerWidth(chart);
  svg.setAttribute("viewBox", `0 0 ${chart.width} ${HEIGHT}`);
  svg.replaceChildren();
  if (spec.points.length) plot(chart, spec.points.filter((point) => point.y !== null));
  show(chart);
  svg.setAttribute("aria-label", `${spec.title}: ${spec.points.length} points, latest ${reading(spec, latest(spec), false)}. Arrow keys read values.`);
}

const latest = (spec) => spec.points.findLast((point) => point.y !== null);

function reading(spec, point, noted) {
  if (!point) return "no value yet";
  return `step ${point.x}: ${point.y === null ? point.bad : (spec.write || formatNumber)(point.y)}${noted && point.note ? `, ${point.note}` : ""}`;
}

function plot(chart, good) {
  const { spec, svg, width } = chart;
  const right = width - (spec.lines?.length ? LABELS : RIGHT);
  const steps = spec.points.map((point) => point.x);
  const values = good.flatMap((point) => [point.y, point.low ?? point.y, point.high ?? point.y]).concat((spec.lines || []).map((line) => line.y));
  const [x0, x1] = Math.min(...steps) === Math.max(...steps) ? [steps[0] - 1, steps[0] + 1] : [Math.min(...steps), Math.max(...steps)];
  const [y0, y1] = span(values.length ? values : [0, 1]);
  const X = (step) => LEFT + ((step - x0) / (x1 - x0)) * (right - LEFT);
  const Y = (value) => TOP + ((y1 - value) / (y1 - y0)) * (HEIGHT - TOP - BOTTOM);
  const floor = HEIGHT - BOTTOM;
  for (const value of ticks(y0, y1, 4)) {
    svg.append(element("line", { class: "c-grid", x1: LEFT, x2: right, y1: Y(value), y2: Y(value) }));
    svg.append(element("text", { class: "c-text", x: LEFT - 6, y: Y(value) + 4, "text-anchor": "end" }, (spec.write || formatNumber)(value)));
  }
  for (const step of ticks(x0, x1, width < 400 ? 4 : 6).filter(Number.isInteger)) {
    svg.append(element("text", { class: "c-text", x: X(step), y: HEIGHT - 6, "text-anchor": "middle" }, String(step)));
  }
  svg.append(element("line", { class: "c-axis", x1: LEFT, x2: right, y1: floor, y2: floor }));
  for (const mark of spec.marks || []) {
    if (mark.step < x0 || mark.step > x1) continue;
    const kind = ["look", "checkpoint", "attempt"].includes(mark.kind) ? mark.kind : "other";
    const row = { look: 0, checkpoint: 5, attempt: 10, other: 10 }[kind];
    const tick = element("line", { class: `m-${kind}`, x1: X(mark.step), x2: X(mark.step), y1: floor + 2 + row, y2: floor + 6 + row });
    tick.append(element("title", {}, `${mark.kind} at step ${mark.step}`));
    svg.append(tick);
  }
  for (const line of spec.lines || []) {
    svg.append(element("line", { class: "c-base", x1: LEFT, x2: right, y1: Y(line.y), y2: Y(line.y) }));
    svg.append(element("text", { class: "c-base-text", x: right + 6, y: Y(line.y) + 4 }, line.label));
  }
  let path = "";
  let pen = "M";
  for (const point of spec.points) {
    if (point.y === null) { // a gap, and a cross on the axis, so that a lost value is seen and not bridged
      pen = "M";
      const x = X(point.x);
      svg.append(element("path", { class: "c-bad", d: `M${x - 3} ${floor - 7}l6 6m0 -6l-6 6` }));
      continue;
    }
    path += `${pen}${X(point.x).toFixed(1)} ${Y(point.y).toFixed(1)}`;
    pen = "L";
    if (point.low !== undefined && point.low !== null) svg.append(element("line", { class: "c-whisker", x1: X(point.x), x2: X(point.x), y1: Y(point.low), y2: Y(point.high) }));
    if (spec.dots || good.length < 3) svg.append(element("circle", { class: "c-dot", cx: X(point.x), cy: Y(point.y), r: 3.2 }));
  }
  svg.append(element("path", { class: "c-line", d: path || "M0 0" }));
  chart.place = { X, floor };
}

// Put the cursor at the step that is read, or away when none is.
function show(chart) {
  const { spec, svg } = chart;
  const index = spec.points.findIndex((point) => point.x === chart.at);
  svg.querySelector(".c-cursor")?.remove();
  if (index >= 0) {
    const x = chart.place.X(chart.at);
    svg.append(element("line", { class: "c-cursor", y1: TOP, y2: chart.place.floor, x1: x, x2: x }));
  }
  chart.readout.textContent = reading(spec, spec.points[index] || latest(spec), index >= 0);
}

function listen(chart) {
  const { svg } = chart;
  const put = (at) => { chart.at = at; show(chart); };
  svg.addEventListener("keydown", (event) => {
    const { points } = chart.spec;
    const move = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -points.length, End: points.length }[event.key];
    if (!move || !points.length) return;
    event.preventDefault();
    const found = points.findIndex((point) => point.x === chart.at);
    const index = (found < 0 ? points.length - 1 : found) + move;
    put(points[Math.max(0, Math.min(points.length - 1, index))].x);
  });
  svg.addEventListener("pointermove", (event) => {
    const { points } = chart.spec;
    if (!points.length) return;
    const x = event.clientX - svg.getBoundingClientRect().left;
    const distances = points.map((point) => Math.abs(chart.place.X(point.x) - x));
    put(points[distances.indexOf(Math.min(...distances))].x);
  });
  svg.addEventListener("pointerleave", () => put(null));
  svg.addEventListener("blur", () => put(null));
}
