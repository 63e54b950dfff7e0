// Charts in SVG, drawn anew each time. What is null is not drawn, and never as 0.

const SPACE = "http://www.w3.org/2000/svg";
const EDGE = { left: 40, right: 10, top: 20, bottom: 24 };
const WIDE = 4; // half of what a sign of a label takes, with some space

function add(parent, name, attributes, text) {
  const made = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

// An empty drawing of the element's own size, and what is told to those who do not see it.
function fresh(svg, told) {
  svg.replaceChildren();
  svg.setAttribute("aria-label", told);
  const box = svg.getBoundingClientRect();
  const width = Math.max(box.width, 120);
  const height = Math.max(box.height, 40);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  return { width, height };
}

function nothing(svg, size, text) {
  add(svg, "text", { x: size.width / 2, y: size.height / 2, class: "mid" }, text);
}

// The next of 1, 2, 5, 10, ... that is not below.
export function ceiling(value) {
  if (!(value > 0)) return 1;
  const base = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * base).find((step) => step >= value * 0.999999);
}

// One bar for each of [{label, value, text, kind}]; `most` is the top of the scale.
export function bars(svg, entries, most, told, empty) {
  const size = fresh(svg, told);
  const shown = entries.filter((entry) => entry.value !== null);
  if (!shown.length) return nothing(svg, size, empty);
  const floor = size.height - EDGE.bottom;
  const room = floor - EDGE.top;
  const pitch = (size.width - 8) / entries.length;
  add(svg, "line", { x1: 0, x2: size.width, y1: floor, y2: floor, class: "grid" });
  // Below the bars only as many words as there is room for.
  const labels = Math.max(1, Math.ceil(24 / pitch));
  const boxes = entries.map((entry, index) => {
    const height = entry.value === null ? 0 : room * Math.min(entry.value / most, 1);
    const left = 4 + pitch * (index + 0.12);
    return { left, right: left + pitch * 0.76, top: floor - height, bottom: floor };
  });
  const taken = [...boxes];
  entries.forEach((entry, index) => {
    const box = boxes[index];
    const middle = (box.left + box.right) / 2;
    if (index % labels === 0) {
      add(svg, "text", { x: middle, y: size.height - 7, class: "mid" }, entry.label);
    }
    if (entry.value === null) return;
    const bar = { x: box.left, y: box.top, width: pitch * 0.76, height: floor - box.top, rx: 2 };
    const made = add(svg, "rect", { ...bar, class: `fill ${entry.kind}` });
    add(made, "title", {}, `${entry.label}: ${entry.text}`);
    const half = WIDE * entry.text.length;
    const place = { left: middle - half, right: middle + half };
    const text = { ...place, top: box.top - 16, bottom: box.top - 4 };
    // A text that lies over a bar or another text is left out; the bar says it when pointed at.
    if (!entry.value || taken.some((other) => meet(text, other))) return;
    taken.push(text);
    add(svg, "text", { x: middle, y: box.top - 5, class: "mid label" }, entry.text);
  });
}

function meet(one, other) {
  return one.left < other.right && other.left < one.right
    && one.top < other.bottom && other.top < one.bottom;
}

// Bars to the right: [{label, value, text, kind}].
export function rows(svg, entries, told) {
  const size = fresh(svg, told);
  const most = Math.max(...entries.map((entry) => entry.value ?? 0), 1e-9);
  const pitch = size.height / entries.length;
  const start = 132;
  const room = Math.max(size.width - start - 96, 20);
  entries.forEach((entry, index) => {
    const middle = pitch * (index + 0.5);
    add(svg, "text", { x: 0, y: middle + 4 }, entry.label);
    const width = entry.value === null ? 0 : Math.max((room * entry.value) / most, 1);
    if (entry.value !== null) {
      const bar = { x: start, y: middle - 10, width, height: 20, rx: 2 };
      add(svg, "rect", { ...bar, class: `fill ${entry.kind}` });
    }
    add(svg, "text", { x: start + width + 8, y: middle + 4, class: "label" }, entry.text);
  });
}

// Lines over the last `span` seconds: `times` in seconds, `series` [{values, kind}] beside them.
// `reference` is a level that is marked.
export function lines(svg, times, series, span, told, reference) {
  const size = fresh(svg, told);
  const every = series.flatMap((one) => one.values).filter((value) => value !== null);
  if (!every.length) return nothing(svg, size, "nothing was decoded yet");
  const most = ceiling(Math.max(...every, reference ?? 0));
  const floor = size.height - EDGE.bottom;
  const right = size.width - EDGE.right;
  const end = times[times.length - 1];
  const x = (time) => right - ((end - time) / span) * (right - EDGE.left);
  const y = (value) => floor - (value / most) * (floor - EDGE.top);
  for (const level of [0, most / 2, most]) {
    add(svg, "line", { x1: EDGE.left, x2: right, y1: y(level), y2: y(level), class: "grid" });
    const text = String(Number(level.toPrecision(3)));
    add(svg, "text", { x: EDGE.left - 6, y: y(level) + 4, class: "end" }, text);
  }
  add(svg, "text", { x: EDGE.left, y: size.height - 7 }, `${Math.round(span / 60)} min ago`);
  add(svg, "text", { x: right, y: size.height - 7, class: "end" }, "now");
  if (reference !== undefined) {
    const level = { x1: EDGE.left, x2: right, y1: y(reference), y2: y(reference) };
    add(svg, "line", { ...level, class: "one" });
  }
  for (const one of series) {
    add(svg, "path", { d: path(times, one.values, x, y), class: `line ${one.kind}` });
  }
}

// With gaps where a value is null.
function path(times, values, x, y) {
  let drawn = "";
  let pen = "M";
  values.forEach((value, index) => {
    if (value === null) {
      pen = "M";
      return;
    }
    const at = `${x(times[index]).toFixed(1)} ${y(value).toFixed(1)}`;
    // A point between two gaps would otherwise not be seen.
    drawn += pen === "M" ? `M${at}h0.01` : `L${at}`;
    pen = "L";
  });
  return drawn;
}
