"use strict";
document.documentElement.classList.add("js");

// Create an element. Text is always set as text, so that names cannot inject markup.
function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "onclick") element.addEventListener("click", value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// Sorting: numbers by their full value, words alphabetically, empty cells always last.
const collator = new Intl.Collator("en", { numeric: true });

function compare(x, y, sign) {
  if (x === null || y === null) return (x === null) - (y === null);
  return sign * (typeof x === "number" && typeof y === "number" ? x - y : collator.compare(String(x), String(y)));
}

function value(row, column) {
  const text = row.cells[column].dataset.value;
  const number = Number(text);
  return text === "" ? null : Number.isNaN(number) ? text : number;
}

for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      // The first click sorts numbers in descending order, so that the best come first, and words in ascending order.
      const rows = [...body.rows];
      const first = rows.map((row) => value(row, column)).find((each) => each !== null);
      const before = head.getAttribute("aria-sort");
      const fresh = typeof first === "number" ? "descending" : "ascending";
      const other = fresh === "descending" ? "ascending" : "descending";
      const order = before === fresh ? other : fresh;
      for (const each of heads) each.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", order);
      const sign = order === "ascending" ? 1 : -1;
      rows.sort((a, b) => compare(value(a, column), value(b, column), sign));
      body.append(...rows);
    });
  });
}

// Button groups.
function press(button) {
  for (const each of button.parentElement.querySelectorAll("button")) {
    each.setAttribute("aria-pressed", String(each === button));
  }
}

for (const choice of document.querySelectorAll(".choice[data-for]")) {
  const table = document.getElementById(choice.dataset.for);
  table.dataset.rows = "key";
  for (const button of choice.querySelectorAll("button")) {
    button.addEventListener("click", () => {
      press(button);
      table.dataset.rows = button.dataset.rows;
    });
  }
}

for (const button of document.querySelectorAll("button[data-show]")) {
  button.addEventListener("click", () => {
    press(button);
    for (const trial of button.closest(".target").querySelectorAll(".trial")) {
      trial.toggleAttribute("data-later", trial.id !== button.dataset.show);
    }
  });
}

// ------------------------------------------------------------ charts: curves, or points, over one axis

const SVG = "http://www.w3.org/2000/svg";

function draw(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// The line of a series in a legend; 0 is the color of text.
const lineSample = (color) => make("i", { class: "line", style: color ? `--line: var(--series-${color})` : null });

const shortNumber = (value) => {
  if (value === 0 || (Math.abs(value) >= 1e-3 && Math.abs(value) < 1e4)) return String(Number(value.toPrecision(3)));
  return value.toExponential(1).replace(".0e", "e").replace("e+", "e");
};

// Round numbers between two others, and the number of decimals that tells them apart.
function niceTicks(low, high, count) {
  const raw = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((each) => each >= raw);
  const ticks = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high + step * 1e-9; tick += step) ticks.push(tick);
  return [ticks, Math.max(0, Math.min(4, -Math.floor(Math.log10(step) + 1e-9) + (step / power === 2.5 ? 1 : 0)))];
}

// Ticks of a logarithmic axis between two powers of ten: powers, and over less than three of them 3 times each, too.
function logTicks(low, high) {
  const every = Math.ceil((high - low) / 5), ticks = [];
  for (let power = Math.floor(low / every) * every; power <= high; power += every) {
    for (const factor of high - low < 3 ? [1, 3] : [1]) ticks.push(factor * 10 ** power);
  }
  return ticks.filter((tick) => tick >= 10 ** low && tick <= 10 ** high);
}

// An axis: its ends, its ticks as [value, text], and the share of the axis that lies before a value.
function makeAxis(low, high, isLog, count, isCount) {
  const scaled = isLog ? Math.log10 : (value) => value;
  const [from, to] = [scaled(low), scaled(high)];
  const [values, digits] = isLog ? [logTicks(from, to), 0] : niceTicks(low, high, count);
  const text = (value) => (isLog || high < 0.01 ? shortNumber(value) : isCount ? value.toLocaleString("en") : value.toFixed(digits));
  const at = (value) => (scaled(value) - from) / (to - from || 1);
  const nearest = (share, candidates) => candidates.reduce((best, each) => (Math.abs(at(each) - share) < Math.abs(at(best) - share) ? each : best));
  return { ticks: values.map((value) => [value, text(value)]), at, nearest };
}

function valueAxis(points, threshold, isLoss) {
  const values = points.map((point) => point[1]);
  const low = Math.min(...values), high = Math.max(...values);
  if (!isLoss) {
    const margin = 0.05 * (high - low) || 0.5;
    return makeAxis(low - margin, high + margin, false, 4);
  }
  // Without the first tenth of the training: its fall would flatten the valley.
  const start = 0.1 * Math.max(...points.map((point) => point[0]));
  const late = points.filter((point) => point[0] >= start).map((point) => point[1]);
  if (threshold !== null) late.push(1.1 * threshold);
  late.sort((a, b) => a - b);
  const top = late[late.length - 1];
  // The loss of a run that diverged, as in the drawn figures: on a linear axis all other losses would look 0.
  if (low > 0 && top > 100 * late[late.length >> 1]) return makeAxis(low / 1.5, 1.5 * top, true, 4);
  return makeAxis(Math.min(0, low), 1.06 * top, false, 4);
}

// A figure of series, each with a name, the number of a color, and [x, value] for every point; a value that is not
// finite is text and leaves a gap. A series may have a band, [x, low, high] for every point, and be dashed. Options: the averaged range and the threshold of a valley; points instead of curves;
// for other axes than steps, their name, whether they are logarithmic, and the words at whole numbers.
function chart(title, series, { range = null, isLoss = false, isPoints = false, across = null } = {}) {
  const hasName = across && across.name !== title;
  const width = 440, height = hasName ? 262 : 245, [left, top, right, bottom] = [44, 8, 432, 214];
  const points = series.flatMap((one) => one.at).filter((point) => typeof point[1] === "number");
  const threshold = isLoss && range ? range.threshold : null;
  const every = [...new Set(series.flatMap((one) => one.at.map((point) => point[0])))].sort((a, b) => a - b);
  const what = across ? across.name : "Step", last = every[every.length - 1];
  const text = (value) => (across && across.words ? across.words[value] : across ? shortNumber(value) : value.toLocaleString("en"));
  let xAxis;
  if (!across) xAxis = makeAxis(0, Math.max(last, range && range.end ? range.end : 1), false, 5, true);
  else if (across.isLog) xAxis = makeAxis(every[0] / 1.3, 1.3 * last, true, 5);
  else {
    const margin = 0.05 * (last - every[0]) || 0.5;
    xAxis = makeAxis(every[0] - margin, last + margin, false, 5);
  }
  if (across && (across.words || every.length < 7)) xAxis.ticks = every.map((value) => [value, text(value)]);
  const ends = series.flatMap((one) => (one.band || []).flatMap(([at, low, high]) => [[at, low], [at, high]]));
  const yAxis = valueAxis(points.length ? [...points, ...ends] : [[0, 0]], threshold, isLoss);
  const x = (value) => left + xAxis.at(value) * (right - left);
  const y = (value) => bottom - yAxis.at(value) * (bottom - top);

  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title} against ${what.toLowerCase()}` });
  if (range && range.start !== null && range.end !== null) {
    const from = x(range.start), to = x(range.end);
    svg.append(draw("rect", { class: "averaged", x: from, y: top, width: Math.max(to - from, 1), height: bottom - top }));
  }
  for (const [value, label] of yAxis.ticks) {
    svg.append(draw("line", { class: "grid", x1: left, x2: right, y1: y(value), y2: y(value) }),
      draw("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, label));
  }
  for (const [value, label] of xAxis.ticks) svg.append(draw("text", { x: x(value), y: bottom + 18, "text-anchor": "middle" }, label));
  if (hasName) svg.append(draw("text", { x: (left + right) / 2, y: bottom + 38, "text-anchor": "middle" }, across.name));
  svg.append(draw("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }));
  // What lies beyond the axes is cut off.
  const inside = draw("svg", { x: left - 4, y: top - 4, width: right - left + 8, height: bottom - top + 5, viewBox: `${left - 4} ${top - 4} ${right - left + 8} ${bottom - top + 5}` });
  if (threshold !== null) inside.append(draw("line", { class: "threshold", x1: left, x2: right, y1: y(threshold), y2: y(threshold) }));
  for (const one of series.filter((each) => each.band && each.band.length > 1)) {
    const edge = (end) => one.band.map((each) => `${x(each[0]).toFixed(1)} ${y(each[end]).toFixed(1)}`);
    inside.append(draw("path", { class: "band", d: `M${[...edge(1), ...edge(2).reverse()].join("L")}Z`, style: `fill: var(--series-${one.color})` }));
  }
  series.forEach((one, number) => {
    const aside = isPoints ? 7 * (number - (series.length - 1) / 2) : 0;  // points of several series stand side by side
    let path = "", pen = "M";
    for (const [step, value] of one.at) {
      if (typeof value !== "number") { pen = "M"; continue; }
      path += `${pen}${(x(step) + aside).toFixed(1)} ${y(value).toFixed(1)}${isPoints ? "h0" : ""}`;
      pen = isPoints ? "M" : "L";
    }
    const classes = ["curve", ...(one.color ? [] : ["mean"]), ...(one.dashed ? ["dashed"] : []), ...(isPoints || one.at.length === 1 ? ["dot"] : [])];
    // A line of length 0 with round ends is a dot.
    inside.append(draw("path", { class: classes.join(" "), d: path && path + "h0", style: one.color ? `stroke: var(--series-${one.color})` : "" }));
  });
  svg.append(inside);

  // Values at the pointer: a line at the nearest x, with its numbers on the side that has more space.
  const reading = make("output", { class: "reading", "aria-live": "off" });
  const cursor = draw("line", { class: "cursor", y1: top, y2: bottom });
  const number = (value) => (typeof value !== "number" ? value
    : across && !isPoints ? shortNumber(value)
    : Math.abs(value) < 1e4 ? value.toFixed(isLoss ? 3 : 1) : value.toExponential(2).replace("e+", "e"));
  function show(event) {
    if (!every.length) return;
    const frame = svg.getBoundingClientRect(), scale = width / frame.width;
    const at = xAxis.nearest(((event.clientX - frame.left) * scale - left) / (right - left), every);
    const place = x(at) / scale, isRight = place > frame.width / 2;
    cursor.setAttribute("x1", x(at));
    cursor.setAttribute("x2", x(at));
    svg.append(cursor);
    reading.replaceChildren(make("b", {}, `${what} ${text(at)}`));
    for (const one of series) {
      const values = one.at.filter((point) => point[0] === at).map((point) => point[1]);
      // Of several points, the best.
      if (values.length) reading.append(make("span", {}, lineSample(one.color), one.name, make("em", {}, number(values.reduce((best, each) => (each > best ? each : best))))));
    }
    reading.classList.add("on");
    reading.style.left = isRight ? "auto" : `${place + 10}px`;
    reading.style.right = isRight ? `${frame.width - place + 10}px` : "auto";
  }
  svg.addEventListener("pointermove", show);
  svg.addEventListener("pointerdown", show);
  svg.addEventListener("pointerleave", () => { cursor.remove(); reading.classList.remove("on"); });
  return make("figure", { class: "panel" }, make("figcaption", {}, title), svg, reading);
}

const charts = JSON.parse(document.getElementById("charts").textContent);
for (const holder of document.querySelectorAll("[data-charts]")) {
  holder.append(...charts[holder.dataset.charts].map(({ title, series, ...options }) => chart(title, series, options)));
}

// Copy a table.
for (const block of document.querySelectorAll(".copy")) {
  if (!navigator.clipboard) break; // a file opened from disk may have no clipboard; its text can still be selected
  const copy = async () => {
    await navigator.clipboard.writeText(block.querySelector("pre").textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  };
  const button = make("button", { type: "button", onclick: copy }, "Copy");
  block.append(button);
}
