// Small line charts as inline SVG: one value per step, a base line, whiskers, marks below the axis, and a cursor that
// arrow keys and the pointer move. It draws what it is given and fetches nothing.

const NS = "http://www.w3.org/2000/svg";
const WIDTH = 420, HEIGHT = 190, LEFT = 52, RIGHT = 12, TOP = 8, BOTTOM = 34;

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

// spec: {title, help, unit, points: [{x, y, low, high, bad, note}], lines: [{y, label}], marks: [{kind, step}], dots, end}
export function drawChart(figure, spec) {
  const good = spec.points.filter((point) => point.y !== null);
  const caption = document.createElement("figcaption");
  const name = document.createElement("span");
  const readout = document.createElement("output");
  name.textContent = spec.unit ? `${spec.title} (${spec.unit})` : spec.title;
  caption.append(name, readout);
  const help = document.createElement("p");
  help.textContent = spec.help || "";
  const last = good[good.length - 1];
  readout.textContent = last ? `step ${last.x}: ${formatNumber(last.y)}` : "no value yet";
  const svg = element("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", tabindex: "0" });
  svg.setAttribute("aria-label", `${spec.title}: ${spec.points.length} points, latest ${readout.textContent}. Arrow keys read values.`);
  if (spec.points.length) plot(svg, spec, good, readout);
  figure.replaceChildren(caption, help, svg);
}

function plot(svg, spec, good, readout) {
  const steps = spec.points.map((point) => point.x).concat(spec.end ? [spec.end] : []);
  const values = good.flatMap((point) => [point.y, point.low ?? point.y, point.high ?? point.y]).concat((spec.lines || []).map((line) => line.y));
  const [x0, x1] = Math.min(...steps) === Math.max(...steps) ? [steps[0] - 1, steps[0] + 1] : [Math.min(...steps), Math.max(...steps)];
  const [y0, y1] = span(values.length ? values : [0, 1]);
  const X = (step) => LEFT + ((step - x0) / (x1 - x0)) * (WIDTH - LEFT - RIGHT);
  const Y = (value) => TOP + ((y1 - value) / (y1 - y0)) * (HEIGHT - TOP - BOTTOM);
  const floor = HEIGHT - BOTTOM;
  for (const value of ticks(y0, y1, 4)) {
    svg.append(element("line", { class: "c-grid", x1: LEFT, x2: WIDTH - RIGHT, y1: Y(value), y2: Y(value) }));
    svg.append(element("text", { class: "c-text", x: LEFT - 6, y: Y(value) + 4, "text-anchor": "end" }, formatNumber(value)));
  }
  for (const step of ticks(x0, x1, 6).filter(Number.isInteger)) {
    svg.append(element("text", { class: "c-text", x: X(step), y: HEIGHT - 6, "text-anchor": "middle" }, String(step)));
  }
  svg.append(element("line", { class: "c-axis", x1: LEFT, x2: WIDTH - RIGHT, y1: floor, y2: floor }));
  for (const mark of spec.marks || []) {
    if (mark.step < x0 || mark.step > x1) continue;
    const kind = ["look", "checkpoint", "attempt"].includes(mark.kind) ? mark.kind : "other";
    const row = { look: 0, checkpoint: 5, attempt: 10, other: 10 }[kind];
    const tick = element("line", { class: `m-${kind}`, x1: X(mark.step), x2: X(mark.step), y1: floor + 2 + row, y2: floor + 6 + row });
    tick.append(element("title", {}, `${mark.kind} at step ${mark.step}`));
    svg.append(tick);
  }
  for (const line of spec.lines || []) {
    svg.append(element("line", { class: "c-base", x1: LEFT, x2: WIDTH - RIGHT, y1: Y(line.y), y2: Y(line.y) }));
    svg.append(element("text", { class: "c-base-text", x: WIDTH - RIGHT, y: Y(line.y) - 4, "text-anchor": "end" }, line.label));
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
  follow(svg, spec, X, floor, readout);
}

function follow(svg, spec, X, floor, readout) {
  const cursor = element("line", { class: "c-cursor", y1: TOP, y2: floor, visibility: "hidden" });
  svg.append(cursor);
  let index = spec.points.length - 1;
  const show = () => {
    const point = spec.points[index];
    cursor.setAttribute("x1", X(point.x));
    cursor.setAttribute("x2", X(point.x));
    cursor.setAttribute("visibility", "visible");
    readout.textContent = `step ${point.x}: ${point.y === null ? point.bad : formatNumber(point.y)}${point.note ? `, ${point.note}` : ""}`;
  };
  svg.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -spec.points.length, End: spec.points.length }[event.key];
    if (!move) return;
    event.preventDefault();
    index = Math.max(0, Math.min(spec.points.length - 1, index + move));
    show();
  });
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * WIDTH;
    const distances = spec.points.map((point) => Math.abs(X(point.x) - x));
    index = distances.indexOf(Math.min(...distances));
    show();
  });
}
