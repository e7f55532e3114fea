
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

const sweep = { data: null, curves: null, byCell: new Map() };

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
  startSearch();
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

// ------------------------------------------------------------ hyperparameters

// For each hyperparameter, the accuracy of every run of a dataset as a point; algorithms have colors.
function startSearch() {
  const form = document.getElementById("search-filters");
  if (!form) return;
  const { runs, settings, weights } = sweep.data, fields = form.elements;
  fill(fields.dataset, runs.dataset.values.map((name, code) => [code, name]), 0);
  fill(fields.weights, weights.map((name, place) => [place, name]), sweep.preferred);
  const legend = document.getElementById("search-legend"), holder = document.getElementById("search-charts");
  function update() {
    const accuracies = sweep.data[fields.value ? fields.value.value : "validation"][Number(fields.weights.value)] ?? [];
    const members = runs.trial.map((_, run) => run)
      .filter((run) => runs.dataset.codes[run] === Number(fields.dataset.value) && (accuracies[run] ?? null) !== null);
    const algorithms = [...new Set(members.map((run) => runs.algorithm.codes[run]))].map((code, place) => ({ code, color: place % 8 + 1, name: runs.algorithm.values[code] }));
    legend.replaceChildren(...algorithms.map((one) => make("li", {}, lineSample(one.color), one.name)));
    const figures = settings.filter((setting) => setting.searched).map((setting) => searchChart(setting, members, algorithms, accuracies)).filter(Boolean);
    holder.replaceChildren(...(figures.length ? figures : [make("p", { class: "note" }, "These runs have the same hyperparameters.")]));
  }
  form.addEventListener("input", update);
  form.addEventListener("submit", (event) => event.preventDefault());
  update();
}

// The chart of one setting; null if the runs do not differ in it. Words, such as the name of an optimizer, stand side by side.
function searchChart(setting, members, algorithms, accuracies) {
  const { runs } = sweep.data;
  const codes = [...new Set(members.map((run) => setting.codes[run]))].filter((code) => code >= 0);
  if (codes.length < 2) return null;
  const isNumber = codes.every((code) => setting.values[code] !== "" && Number.isFinite(Number(setting.values[code])));
  const words = isNumber ? null : codes.map((code) => setting.values[code]).sort(collator.compare);
  const place = (code) => (isNumber ? Number(setting.values[code]) : words.indexOf(setting.values[code]));
  const places = codes.map(place), low = Math.min(...places);
  const series = algorithms.map(({ code, color, name }) => ({ name, color, at: members
    .filter((run) => runs.algorithm.codes[run] === code && setting.codes[run] >= 0)
    .map((run) => [place(setting.codes[run]), accuracies[run]]) }));
  const across = { name: setting.name, words, isLog: isNumber && low > 0 && Math.max(...places) / low > 20 };
  return chart(setting.name, series, { isPoints: true, across });
}

// A setting's value in a table: numbers of a random search have many digits.
const shortSetting = (one, run) => {
  if (one.codes[run] < 0) return "–";
  const text = one.values[one.codes[run]];
  return text.length > 6 && Number.isFinite(Number(text)) ? shortNumber(Number(text)) : text;
};

// ------------------------------------------------------------ the list of runs

const PAGE = 50;

function startRuns() {
  const { runs, settings, weights, validation } = sweep.data;
  const section = document.getElementById("runs-section");
  const form = document.getElementById("run-filters");
  const table = document.getElementById("runs-table");
  const [previous, next] = section.querySelectorAll(".pages button");
  const pageText = section.querySelector(".pages output");
  fill(form.elements.weights, weights.map((name, place) => [place, name]), sweep.preferred);
  const searched = settings.filter((setting) => setting.searched);
  const coded = (column) => (run) => runs[column].values[runs[column].codes[run]];
  const setting = (one) => (run) => (one.codes[run] < 0 ? null : one.values[one.codes[run]]);
  const columns = [
    { name: "Run", text: (run) => runs.name[run] },
    { name: "Dataset", text: coded("dataset") },
    { name: "Algorithm", text: coded("algorithm") },
    { name: "Target", text: coded("target") },
    { name: "Trial", number: (run) => runs.trial[run] },
    ...searched.map((one) => ({ name: one.name, text: setting(one), show: (run) => shortSetting(one, run) })),
    { name: "Validation", number: (run) => (validation.length ? validation[form.elements.weights.value][run] : null), print: percent },
    { name: "Time", number: (run) => runs.seconds[run], print: (value) => (value === null ? "–" : duration(value)) },
  ].filter((column) => column.name === "Run" || column.name === "Validation" || varies(column));
  function varies(column) {
    const first = (column.number || column.text)(0);
    return runs.trial.some((_, run) => (column.number || column.text)(run) !== first);
  }
  const all = runs.trial.map((_, number) => number);
  let haystacks = null, order = all, page = 0, sorted = { column: columns.findIndex((each) => each.name === "Validation"), falling: true };

  const head = make("tr", {}, ...columns.map((column, place) => make("th", { scope: "col" },
    make("button", { type: "button", onclick: () => sortBy(place) }, column.name))));
  const body = make("tbody");
  table.append(make("thead", {}, head), body);

  function sortBy(place) {
    const fresh = Boolean(columns[place].number);
    sorted = { column: place, falling: sorted.column === place ? !sorted.falling : fresh };
    update();
  }

  function update() {
    const words = form.elements.words.value.toLowerCase().split(/\s+/).filter(Boolean);
    if (words.length && !haystacks) {
      haystacks = all.map((run) => [runs.name[run], coded("dataset")(run), coded("algorithm")(run), coded("target")(run),
        `trial=${runs.trial[run]}`, ...searched.map((one) => `${one.name}=${setting(one)(run)}`), sweep.selected.has(run) ? "selected" : ""]
        .join(" ").toLowerCase());
    }
    order = words.length ? all.filter((run) => words.every((word) => haystacks[run].includes(word))) : [...all];
    const { number, text } = columns[sorted.column];
    const key = number || ((run) => { const word = text(run); return word !== null && word !== "" && !Number.isNaN(Number(word)) ? Number(word) : word; });
    const keys = new Map(order.map((run) => [run, key(run)]));
    const sign = sorted.falling ? -1 : 1;
    order.sort((a, b) => compare(keys.get(a), keys.get(b), sign));
    [...head.cells].forEach((cell, place) => {
      if (place === sorted.column) cell.setAttribute("aria-sort", sorted.falling ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    });
    form.elements.count.value = `${order.length.toLocaleString("en")} of ${all.length.toLocaleString("en")} runs`;
    show(0);
  }

  function show(number) {
    const last = Math.max(0, Math.ceil(order.length / PAGE) - 1);
    page = Math.min(Math.max(number, 0), last);
    body.replaceChildren(...order.slice(page * PAGE, (page + 1) * PAGE).map((run) => make("tr", {},
      ...columns.map((column, place) => {
        const value = (column.number || column.text)(run);
        const text = column.show ? column.show(run) : column.print ? column.print(value) : value === null ? "–" : String(value);
        if (place > 0) return make("td", { class: column.number ? null : "word" }, text);
        // The other columns hold what the first parts of the path say.
        const label = `Open the run ${text}`, open = () => showRun(run);
        return make("th", { scope: "row" }, make("button", { type: "button", class: "link", title: text, "aria-label": label, onclick: open }, lastPart(text)),
          sweep.selected.has(run) ? make("span", { class: "selected", title: "selected for a method" }, " ●") : null);
      }))));
    pageText.value = order.length ? `${(page * PAGE + 1).toLocaleString("en")} to ${Math.min(order.length, (page + 1) * PAGE).toLocaleString("en")} of ${order.length.toLocaleString("en")}` : "no run";
    previous.disabled = page === 0;
    next.disabled = page === last;
  }

  previous.addEventListener("click", () => show(page - 1));
  next.addEventListener("click", () => show(page + 1));
  form.addEventListener("input", update);
  form.addEventListener("submit", (event) => event.preventDefault());
  sweep.listRuns = (words) => {
    form.elements.words.value = words;
    update();
    section.scrollIntoView();
    form.elements.words.focus({ preventScroll: true });
  };
  update();
}

// ------------------------------------------------------------ one run: curves, range, accuracies, settings

async function loadCurves() {
  if (sweep.curves) return sweep.curves;
  const buffer = await unpack("sweep-curves");
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const levels = new Uint16Array(buffer, 4 + length);
  // A domain keeps its color in all runs of a dataset.
  const byDataset = new Map();
  header.runs.forEach((metrics, run) => {
    const dataset = sweep.data.runs.dataset.codes[run];
    if (!byDataset.has(dataset)) byDataset.set(dataset, new Set());
    for (const [, , , ...series] of metrics) for (let i = 0; i < series.length; i += 3) byDataset.get(dataset).add(series[i]);
  });
  const colors = new Map([...byDataset].map(([dataset, codes]) => {
    const names = [...codes].map((code) => header.domains[code]).sort();
    return [dataset, new Map(names.map((name, place) => [name, (place % 8) + 1]))];
  }));
  sweep.curves = { header, levels, colors };
  return sweep.curves;
}

// The curves of a run: name, color and [step, value] of each source, and of their mean.
function curvesOf(run, metric) {
  const { header, levels, colors } = sweep.curves;
  const [isLog, low, scale, ...codes] = header.runs[run][metric];
  const value = (level) => (isLog ? Math.exp(low + scale * level) : low + scale * level);
  const palette = colors.get(sweep.data.runs.dataset.codes[run]);
  const series = [];
  for (let i = 0; i < codes.length; i += 3) {
    const name = header.domains[codes[i]], steps = header.steps[codes[i + 1]], start = codes[i + 2];
    const at = steps.map((step, place) => [step, levels[start + place]])
      .map(([step, level]) => [step, level === 65535 ? "not finite" : value(level)]);
    series.push({ name, color: palette.get(name), at });
  }
  if (series.length > 1) {
    const values = series.map((one) => new Map(one.at));
    const shared = series[0].at.map(([step]) => step)
      .filter((step) => values.every((one) => typeof one.get(step) === "number"));
    series.push({ name: "mean", color: 0, at: shared.map((step) => [step, average(values.map((one) => one.get(step)))]) });
  }
  return series;
}

function runTitle(run) {
  const { runs } = sweep.data;
  const name = (column) => runs[column].values[runs[column].codes[run]];
  return `${name("algorithm")} on ${name("dataset")}, target ${name("target")}, trial ${runs.trial[run]}`;
}

async function showRun(run) {
  const { runs, settings } = sweep.data;
  await loadCurves();
  const dialog = document.getElementById("run");
  const range = runs.range[run];
  const loss = curvesOf(run, 0), accuracy = curvesOf(run, 1);
  const legend = make("ul", { class: "legend", "aria-label": "Sources" },
    ...(loss.length ? loss : accuracy).map((one) => make("li", {}, lineSample(one.color), one.name)));
  if (range && range.threshold !== null) legend.append(make("li", {}, make("i", { class: "line dashed" }), "threshold"));
  if (range) legend.append(make("li", {}, make("i", { class: "swatch" }), "averaged"));
  const facts = [`${runs.steps[run].toLocaleString("en")} steps`];
  if (!runs.finished[run]) facts.push("unfinished");
  if (range && range.start !== null && range.end !== null) {
    facts.push(`${range.average} averages steps ${range.start.toLocaleString("en")} to ${range.end.toLocaleString("en")}`);
  }
  if (runs.seconds[run] !== null) facts.push(duration(runs.seconds[run]));
  const differing = settings.filter((setting) => setting.codes[run] >= 0)
    .map((setting) => make("div", {}, make("dt", {}, setting.name), make("dd", {}, setting.values[setting.codes[run]])));
  const panels = [["Loss on the validation splits", loss, true], ["Accuracy on the validation splits, %", accuracy, false]]
    .filter(([, series]) => series.some((one) => one.at.length))
    .map(([title, series, isLoss]) => chart(title, series, { range, isLoss }));
  dialog.replaceChildren(
    make("div", { class: "heading" }, make("h2", { id: "run-title", tabindex: "-1" }, runTitle(run)),
      make("div", { class: "choice" }, make("button", { type: "button", onclick: () => dialog.close() }, "Close"))),
    make("p", { class: "note path" }, runs.name[run], " · ", facts.join(", ")),
    legend,
    make("div", { class: panels.length === 1 ? "panels single" : "panels" }, ...panels),
    weightsTable(run),
    make("p", { class: "note" }, "The target’s accuracy is shown for the weights for which this run was selected."),
    ...(differing.length ? [make("h3", {}, "Settings that differ between runs"), make("dl", { class: "config" }, ...differing)] : []),
    ...candidates(run));
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
  document.getElementById("run-title").focus();
}

function duration(seconds) {
  if (seconds >= 5400) return `${(seconds / 3600).toFixed(1)} h`;
  return seconds >= 90 ? `${(seconds / 60).toFixed(0)} min` : `${seconds.toFixed(0)} s`;
}

// The accuracies of a run. The target's is shown where the run was selected, as in the tables, or for an oracle.
function weightsTable(run) {
  const { weights, validation, target, results, methods, oracle } = sweep.data;
  const reported = new Map();
  results.run.forEach((each, index) => {
    if (each === run) reported.set(methods[results.method[index]][2], results.accuracy[index]);
  });
  const columns = ["Weights", "Validation, %", "Target, %", ...(oracle ? ["Target validation, %"] : [])];
  const rows = weights.map((name, place) => [name, place]).filter(([, place]) => validation[place][run] !== null)
    .map(([name, place]) => make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, percent(validation[place][run])),
      make("td", {}, reported.has(name) ? percent(reported.get(name)) : "–"),
      oracle ? make("td", {}, percent(target[place][run])) : null));
  return makeTable(columns, rows);
}

const MOST_CANDIDATES = 20;

// The other runs that selection chose among, best validation accuracy first.
function candidates(run) {
  const { runs, weights, validation, settings } = sweep.data;
  const alike = (other) => ["dataset", "algorithm", "target"].every((column) => runs[column].codes[run] === runs[column].codes[other])
    && runs.trial[run] === runs.trial[other];
  const place = sweep.preferred;
  const score = (each) => (weights.length ? validation[place][each] ?? -1 : -1);
  const others = runs.trial.map((_, number) => number).filter(alike).sort((a, b) => score(b) - score(a));
  if (others.length < 2 || !weights.length) return [];
  const searched = settings.filter((setting) => setting.searched && new Set(others.map((each) => setting.codes[each])).size > 1);
  const rows = others.slice(0, MOST_CANDIDATES).map((each) => make("tr", each === run ? { "aria-current": "true" } : {},
    make("th", { scope: "row" }, each === run ? "this run" : make("button", { type: "button", class: "link", onclick: () => showRun(each) }, lastPart(runs.name[each]))),
    ...searched.map((setting) => make("td", { class: "word" }, shortSetting(setting, each))),
    make("td", {}, percent(validation[place][each]), sweep.selected.has(each) ? " ●" : "")));
  const columns = ["Run", ...searched.map((setting) => setting.name), `Validation, % (${weights[place]})`];
  const more = others.length > MOST_CANDIDATES ? `, best ${MOST_CANDIDATES}` : "";
  return [make("h3", {}, `Candidates of this target and trial: ${others.length}${more}`),
    makeTable(columns, rows)];
}

const lastPart = (path) => path.split("/").pop();

startSweep();
