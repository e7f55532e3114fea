
// ------------------------------------------------------------ the explorer of a sweep: data, methods and targets

// Data is deflated and encoded as text. Decoding is native and off the main thread where the browser can.
async function unpack(id) {
  const text = document.getElementById(id).textContent;
  let bytes;
  if (Uint8Array.fromBase64) {
    bytes = Uint8Array.fromBase64(text);
  } else {
    const binary = atob(text);
    bytes = new Uint8Array(binary.length);
    for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  }
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

// A table in a box that scrolls. Columns are the texts of its heads, or cells.
function makeTable(columns, rows, { id = null, label = null } = {}) {
  const heads = columns.map((column) => (typeof column === "string"
    ? make("th", { scope: "col" }, make("span", {}, column)) : column));
  return make("div", { class: "scroll", tabindex: "0", role: label && "region", "aria-label": label },
    make("table", { id }, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows)));
}

function fill(select, options, chosen) {
  select.replaceChildren(...options.map(([value, text]) => {
    return make("option", { value, selected: String(value) === String(chosen) }, text);
  }));
}

const percent = (value) => (value === null || value === undefined ? "–" : value.toFixed(1));
const average = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

// Standard error as in the tables: population standard deviation over the square root of the number of trials.
function meanWithError(values) {
  const center = average(values);
  if (values.length < 2) return [center, null];
  return [center, Math.sqrt(average(values.map((value) => (value - center) ** 2)) / values.length)];
}

function accuracyCell([center, error]) {
  const cell = make("td", {}, percent(center));
  if (error !== null) cell.append(make("span", { class: "error" }, ` ± ${error.toFixed(1)}`));
  return cell;
}

const sweep = { data: null, curves: null, byCell: new Map(), listeners: [] };

async function startSweep() {
  const data = JSON.parse(new TextDecoder().decode(await unpack("sweep-data")));
  sweep.data = data;
  sweep.preferred = data.weights.includes("swad") ? data.weights.indexOf("swad") : data.weights.length - 1;
  const { method, dataset, run } = data.results;
  sweep.selected = new Set(run);
  method.forEach((each, index) => {
    const key = `${each},${dataset[index]}`;
    if (!sweep.byCell.has(key)) sweep.byCell.set(key, []);
    sweep.byCell.get(key).push(index);
  });
  startMethods();
  startComparisons();
  startHeatmap();
  startRuns();
  document.documentElement.dataset.sweep = "ready";
}

// ------------------------------------------------------------ methods x datasets

function startMethods() {
  const form = document.getElementById("method-filters");
  const { methods } = sweep.data;
  const names = (place) => [["", "all"], ...[...new Set(methods.map((each) => each[place]))].map((name) => [name, name])];
  fill(form.elements.algorithm, names(1), "");
  fill(form.elements.weights, names(2), "");
  const rows = [...document.querySelectorAll("#methods-table tbody tr")];
  // Sorting moves rows, so each keeps its method's number.
  rows.forEach((row, number) => {
    row.dataset.method = number;
    // Without a mean, the targets that have a result can still be seen.
    sweep.data.datasets.forEach((_, dataset) => {
      const cell = row.cells[dataset + 1];
      if (cell.querySelector("button") || !sweep.byCell.has(`${number},${dataset}`)) return;
      const title = "Some targets have no result, so there is no mean over targets";
      cell.replaceChildren(make("button", { type: "button", title, "data-method": number, "data-dataset": dataset }, "partial"));
    });
  });
  function filter() {
    const words = form.elements.words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const algorithm = form.elements.algorithm.value, weights = form.elements.weights.value;
    let shown = 0;
    for (const row of rows) {
      const [label, itsAlgorithm, itsWeights] = methods[row.dataset.method];
      const text = label.toLowerCase();
      row.hidden = !(words.every((word) => text.includes(word))
        && (!algorithm || algorithm === itsAlgorithm) && (!weights || weights === itsWeights));
      shown += !row.hidden;
    }
    form.elements.count.value = `${shown} of ${rows.length} methods`;
    sweep.shownMethods = methods.map((_, number) => number)
      .filter((number) => !rows.find((row) => Number(row.dataset.method) === number).hidden);
    for (const listener of sweep.listeners) listener();
  }
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  filter();
  document.getElementById("methods-table").addEventListener("click", (event) => {
    const button = event.target.closest("button[data-method]");
    if (button) showTargets(Number(button.dataset.method), Number(button.dataset.dataset), button);
  });
}

// The targets and trials behind a mean; each number opens its run.
function showTargets(method, dataset, opener) {
  const { methods, datasets, results } = sweep.data;
  const indices = sweep.byCell.get(`${method},${dataset}`) || [];
  const trials = [...new Set(indices.map((index) => results.trial[index]))].sort((a, b) => a - b);
  const targets = [...new Set(indices.map((index) => results.target[index]))].sort();
  const rows = targets.map((target) => {
    const own = indices.filter((index) => results.target[index] === target);
    const row = make("tr", {}, make("th", { scope: "row" }, target));
    for (const trial of trials) {
      const index = own.find((each) => results.trial[each] === trial);
      if (index === undefined) { row.append(make("td", {}, "–")); continue; }
      const label = `${percent(results.accuracy[index])}: open the run of ${target}, trial ${trial}`;
      const open = () => showRun(results.run[index]);
      row.append(make("td", {}, make("button", { type: "button", "aria-label": label, onclick: open },
        percent(results.accuracy[index]))));
    }
    row.append(accuracyCell(meanWithError(own.map((index) => results.accuracy[index]))));
    return row;
  });
  const drill = document.getElementById("drill");
  const close = () => { drill.hidden = true; opener.focus(); };
  const listAll = () => sweep.listRuns(`${datasets[dataset]} ${methods[method][1]}`);
  drill.replaceChildren(
    make("div", { class: "heading" },
      make("h3", {}, methods[method][0], make("span", { class: "as" }, ` on ${datasets[dataset]}`)),
      make("div", { class: "choice" },
        make("button", { type: "button", onclick: listAll }, "All runs"),
        make("button", { type: "button", onclick: close }, "Close"))),
    makeTable(["Target", ...trials.map((trial) => `Trial ${trial}`), "Mean"], rows),
    make("p", { class: "note" }, "Choose a number to see the curves and settings of its run."));
  drill.hidden = false;
  drill.focus({ preventScroll: true });
  drill.scrollIntoView({ block: "nearest" });
}

// ------------------------------------------------------------ wins, ties and losses

const MOST_COMPARED = 30;

function startComparisons() {
  const { methods, wins, tested } = sweep.data;
  document.getElementById("wins-rule").textContent = tested
    ? "A win is a difference that the paired test over trials shows at the 5 % level; all else is a tie. The tests are not corrected for their number, so one win alone shows little."
    : "There is one trial, so there is no interval: the higher accuracy counts, which shows a tendency and no difference.";
  // Wins, ties and losses of one method against another.
  const count = (first, second) => (first > second ? wins[first][second] : [...wins[second][first]].reverse());
  function draw() {
    const holder = document.getElementById("wins-holder");
    const numbers = sweep.shownMethods;
    const sums = new Map(numbers.map((first) => [first, [0, 1, 2].map((place) => {
      return numbers.reduce((sum, second) => sum + (first === second ? 0 : count(first, second)[place]), 0);
    })]));
    const net = (number) => sums.get(number)[0] - sums.get(number)[2];
    const order = [...numbers].sort((a, b) => net(b) - net(a)).slice(0, MOST_COMPARED);
    if (order.length < 2) {
      holder.replaceChildren(make("p", { class: "note" }, "Comparisons need two methods: widen the filter above."));
      return;
    }
    const heads = order.map((number) => make("th", { scope: "col", class: "upright" }, make("span", {}, methods[number][0])));
    const rows = order.map((first) => {
      return make("tr", {}, make("th", { scope: "row" }, methods[first][0]), winCell(sums.get(first), "all others"),
        ...order.map((second) => (first === second
          ? make("td", { class: "same" }, "") : winCell(count(first, second), methods[second][0]))));
    });
    const parts = [makeTable(["Method", "All others", ...heads], rows, { id: "wins-table", label: "Wins, ties and losses" })];
    if (numbers.length > order.length) {
      const text = `The ${order.length} methods with most wins of ${numbers.length}. Filter the methods above to compare others.`;
      parts.push(make("p", { class: "note" }, text));
    }
    holder.replaceChildren(...parts);
  }
  sweep.listeners.push(draw);
  draw();
}

function winCell(counts, opponent) {
  const total = counts[0] + counts[1] + counts[2];
  const lead = total ? (counts[0] - counts[2]) / total : 0;
  const cell = make("td", { class: lead < 0 ? "heat behind" : "heat", title: `against ${opponent}: ${counts[0]} wins, ${counts[1]} ties, ${counts[2]} losses` },
    total ? counts.join("–") : "");
  cell.style.setProperty("--heat", Math.abs(lead).toFixed(3));
  return cell;
}
