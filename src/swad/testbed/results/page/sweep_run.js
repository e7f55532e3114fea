
// ------------------------------------------------------------ one run: curves, range, accuracies, settings

const SVG = "http://www.w3.org/2000/svg";

function draw(tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

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

function curveFigure(title, series, range, isLoss) {
  const figure = make("figure", { class: "panel" }, make("figcaption", {}, title));
  const width = 440, height = 245, box = [44, 8, 432, 214];
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title} of every source against the step` });
  const points = series.flatMap((one) => one.at).filter((point) => typeof point[1] === "number");
  const values = points.map((point) => point[1]);
  if (isLoss && range && range[4] !== null) values.push(range[4]);
  let low = Math.min(...values), high = Math.max(...values);
  // The loss of a run that diverged, as in the drawn figures: on a linear axis all other losses would look 0.
  const isLog = isLoss && low > 0 && high > 100 * [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)];
  const scaled = isLog ? Math.log10 : (value) => value;
  [low, high] = [scaled(low), scaled(high)];
  const margin = (high - low) * 0.05 || 0.5;
  low -= margin; high += margin;
  const steps = [0, Math.max(...points.map((point) => point[0]), 1)];
  const x = (step) => box[0] + ((step - steps[0]) / (steps[1] - steps[0])) * (box[2] - box[0]);
  const y = (value) => box[3] - ((scaled(value) - low) / (high - low)) * (box[3] - box[1]);
  if (range && range[1] !== null && range[2] !== null) {
    const left = x(range[1]), right = x(Math.min(range[2], steps[1]));
    svg.append(draw("rect", { class: "averaged", x: left, y: box[1], width: Math.max(right - left, 1), height: box[3] - box[1] }));
  }
  const [ticks, digits] = isLog ? [logTicks(low, high), 0] : niceTicks(low, high, 4);
  for (const tick of ticks) {
    svg.append(draw("line", { class: "grid", x1: box[0], x2: box[2], y1: y(tick), y2: y(tick) }),
      draw("text", { x: box[0] - 6, y: y(tick) + 4, "text-anchor": "end" }, isLog ? shortNumber(tick) : tick.toFixed(digits)));
  }
  for (const tick of niceTicks(steps[0], steps[1], 5)[0]) {
    svg.append(draw("text", { x: x(tick), y: box[3] + 18, "text-anchor": "middle" }, tick.toLocaleString("en")));
  }
  svg.append(draw("line", { class: "axis", x1: box[0], x2: box[2], y1: box[3], y2: box[3] }));
  if (isLoss && range && range[4] !== null) {
    svg.append(draw("line", { class: "threshold", x1: box[0], x2: box[2], y1: y(range[4]), y2: y(range[4]) }));
  }
  for (const one of series) {
    // A value that is not finite leaves a gap.
    let path = "", pen = "M";
    for (const [step, value] of one.at) {
      if (typeof value !== "number") { pen = "M"; continue; }
      path += `${pen}${x(step).toFixed(1)} ${y(value).toFixed(1)}`;
      pen = "L";
    }
    const classes = ["curve", ...(one.color ? [] : ["mean"]), ...(one.at.length === 1 ? ["dot"] : [])];
    // A line of length 0 with round ends is a dot.
    svg.append(draw("path", { class: classes.join(" "), d: path && path + "h0", style: one.color ? `stroke: var(--series-${one.color})` : "" }));
  }
  figure.append(svg, make("output", { class: "reading", "aria-live": "off" }));
  readValues(figure, { box, steps, digits: isLoss ? 3 : 1, series });
  return figure;
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
  if (range && range[4] !== null) legend.append(make("li", {}, make("i", { class: "line dashed" }), "threshold"));
  if (range) legend.append(make("li", {}, make("i", { class: "swatch" }), "averaged"));
  const facts = [`${runs.steps[run].toLocaleString("en")} steps`];
  if (!runs.finished[run]) facts.push("unfinished");
  if (range && range[1] !== null && range[2] !== null) {
    facts.push(`${range[0]} averages steps ${range[1].toLocaleString("en")} to ${range[2].toLocaleString("en")}`);
  }
  if (runs.seconds[run] !== null) facts.push(duration(runs.seconds[run]));
  const differing = settings.filter((setting) => setting.codes[run] >= 0)
    .map((setting) => make("div", {}, make("dt", {}, setting.name), make("dd", {}, setting.values[setting.codes[run]])));
  const panels = [["Loss on the validation splits", loss, true], ["Accuracy on the validation splits, %", accuracy, false]]
    .filter(([, series]) => series.some((one) => one.at.length))
    .map(([title, series, isLoss]) => curveFigure(title, series, range, isLoss));
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
