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

// The line of a series in a legend; 0 is the color of text.
const lineSample = (color) => make("i", { class: "line", style: color ? `--line: var(--series-${color})` : null });

// Values at the pointer: a line at the nearest evaluation, with its numbers next to it.
function readValues(figure, { box, steps, digits, series }) {
  const svg = figure.querySelector("svg");
  const reading = figure.querySelector(".reading");
  const every = [...new Set(series.flatMap((one) => one.at.map((point) => point[0])))].sort((a, b) => a - b);
  if (!every.length) return;
  const cursor = document.createElementNS("http://www.w3.org/2000/svg", "line");
  cursor.setAttribute("class", "cursor");
  cursor.setAttribute("y1", box[1]);
  cursor.setAttribute("y2", box[3]);

  function hide() {
    cursor.remove();
    reading.classList.remove("on");
  }

  function show(event) {
    const frame = svg.getBoundingClientRect();
    const scale = svg.viewBox.baseVal.width / frame.width;
    const x = (event.clientX - frame.left) * scale;
    const at = steps[0] + ((x - box[0]) / (box[2] - box[0])) * (steps[1] - steps[0]);
    const step = every.reduce((best, each) => (Math.abs(each - at) < Math.abs(best - at) ? each : best));
    const place = box[0] + ((step - steps[0]) / (steps[1] - steps[0])) * (box[2] - box[0]);
    cursor.setAttribute("x1", place);
    cursor.setAttribute("x2", place);
    svg.append(cursor);
    reading.replaceChildren(make("b", {}, `Step ${step.toLocaleString("en")}`));
    for (const one of series) {
      const point = one.at.find((each) => each[0] === step);
      if (!point) continue;
      const number = typeof point[1] !== "number" ? point[1]
        : Math.abs(point[1]) < 1e4 ? point[1].toFixed(digits) : point[1].toExponential(2).replace("e+", "e");
      reading.append(make("span", {}, lineSample(one.color), one.name, make("em", {}, number)));
    }
    reading.classList.add("on");
    // Place the numbers on the side with more space.
    const left = place / scale;
    const right = left > frame.width / 2;
    reading.style.left = right ? "auto" : `${left + 10}px`;
    reading.style.right = right ? `${frame.width - left + 10}px` : "auto";
  }

  svg.addEventListener("pointermove", show);
  svg.addEventListener("pointerdown", show);
  svg.addEventListener("pointerleave", hide);
}

const panels = JSON.parse(document.getElementById("panels").textContent);
for (const figure of document.querySelectorAll(".panel")) readValues(figure, panels[figure.dataset.panel]);

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
