
// ------------------------------------------------------------ hyperparameters

const MOST_VALUES = 10, BINS = 8;

// Group the values of a setting for one axis: one group for each value, or bins if a random search drew many.
function axisGroups(setting, members) {
  const codes = [...new Set(members.map((run) => setting.codes[run]))].filter((code) => code >= 0);
  const number = (code) => Number(setting.values[code]);
  const numeric = codes.every((code) => setting.values[code] !== "" && Number.isFinite(number(code)));
  if (numeric) codes.sort((a, b) => number(a) - number(b));
  else codes.sort((a, b) => collator.compare(setting.values[a], setting.values[b]));
  if (!numeric || codes.length <= MOST_VALUES) {
    return codes.map((code) => ({ label: numeric ? shortNumber(number(code)) : setting.values[code], codes: new Set([code]) }));
  }
  const low = number(codes[0]), high = number(codes[codes.length - 1]);
  const logarithmic = low > 0 && high / low > 20;
  const scale = logarithmic ? Math.log : (value) => value;
  const back = logarithmic ? Math.exp : (value) => value;
  const edge = (bin) => back(scale(low) + (bin / BINS) * (scale(high) - scale(low)));
  const groups = Array.from({ length: BINS }, (_, bin) => {
    return { label: `${shortNumber(edge(bin))} to ${shortNumber(edge(bin + 1))}`, codes: new Set() };
  });
  for (const code of codes) {
    const bin = Math.floor(BINS * (scale(number(code)) - scale(low)) / (scale(high) - scale(low)));
    groups[Math.min(bin, BINS - 1)].codes.add(code);
  }
  return groups.filter((group) => group.codes.size);
}

const shortNumber = (value) => {
  if (value === 0 || (Math.abs(value) >= 1e-3 && Math.abs(value) < 1e4)) return String(Number(value.toPrecision(3)));
  return value.toExponential(1).replace(".0e", "e").replace("e+", "e");
};

// A setting's value in a table: numbers of a random search have many digits.
const shortSetting = (one, run) => {
  if (one.codes[run] < 0) return "–";
  const text = one.values[one.codes[run]];
  return text.length > 6 && Number.isFinite(Number(text)) ? shortNumber(Number(text)) : text;
};

function startHeatmap() {
  const form = document.getElementById("heatmap-filters");
  if (!form) return;
  const { runs, settings, weights } = sweep.data;
  const fields = form.elements;
  const all = runs.trial.map((_, number) => number);
  const own = (column, number) => runs[column].codes[number];
  const searched = settings.filter((setting) => setting.searched);
  const listed = (column, members) => [...new Set(members.map((run) => own(column, run)))].map((code) => [code, runs[column].values[code]]);
  const keep = (select, options, preferred) => {
    const wanted = select.value !== "" && options.some(([value]) => String(value) === select.value) ? select.value : preferred;
    fill(select, options, wanted ?? (options.length ? options[0][0] : ""));
  };
  keep(fields.weights, weights.map((name, place) => [place, name]), sweep.preferred);
  keep(fields.dataset, listed("dataset", all));

  // Each choice narrows the next: algorithms of the dataset, targets and searched settings of both.
  function update() {
    let members = all.filter((run) => own("dataset", run) === Number(fields.dataset.value));
    keep(fields.algorithm, listed("algorithm", members));
    members = members.filter((run) => own("algorithm", run) === Number(fields.algorithm.value));
    keep(fields.target, [["", "all"], ...listed("target", members)], "");
    const target = fields.target.value;
    if (target !== "") members = members.filter((run) => own("target", run) === Number(target));
    const varied = searched.filter((setting) => new Set(members.map((run) => setting.codes[run])).size > 1);
    const options = varied.map((setting) => [settings.indexOf(setting), setting.name]);
    const lr = options.find(([, name]) => name === "lr");
    keep(fields.x, options, lr ? lr[0] : undefined);
    const rest = options.filter(([number]) => String(number) !== fields.x.value);
    keep(fields.y, [...rest, ["", "none"]]);
    drawHeatmap(members, settings[fields.x.value], fields.y.value === "" ? null : settings[fields.y.value], fields);
  }
  form.addEventListener("input", update);
  form.addEventListener("submit", (event) => event.preventDefault());
  update();
}

function drawHeatmap(members, across, down, fields) {
  const holder = document.getElementById("heatmap-table");
  if (!across) {
    holder.replaceChildren(make("p", { class: "note" }, "These runs have the same hyperparameters."));
    return;
  }
  const accuracies = sweep.data[fields.value ? fields.value.value : "validation"][Number(fields.weights.value)];
  if (!accuracies) {
    holder.replaceChildren(make("p", { class: "note" }, "No accuracy has been recorded yet."));
    return;
  }
  const columns = axisGroups(across, members);
  const rows = down ? axisGroups(down, members) : [{ label: "all", codes: null }];
  const cells = rows.map((row) => columns.map((column) => {
    const values = members
      .filter((run) => column.codes.has(across.codes[run]) && (!row.codes || row.codes.has(down.codes[run])))
      .map((run) => accuracies[run]).filter((value) => value !== null);
    if (!values.length) return null;
    return { value: fields.show.value === "best" ? Math.max(...values) : average(values), count: values.length };
  }));
  const known = cells.flat().filter((cell) => cell !== null).map((cell) => cell.value);
  const low = Math.min(...known), high = Math.max(...known);
  const heads = [down ? `${down.name} \\ ${across.name}` : across.name, ...columns.map((column) => column.label)];
  const lines = rows.map((row, place) => make("tr", {}, make("th", { scope: "row" }, row.label),
    ...cells[place].map((cell) => {
      if (cell === null) return make("td", { class: "heat" }, "–");
      const element = make("td", { class: "heat", title: `${cell.count} run${cell.count > 1 ? "s" : ""}` }, percent(cell.value),
        make("span", { class: "count" }, ` ${cell.count}`));
      element.style.setProperty("--heat", (high > low ? (cell.value - low) / (high - low) : 0.5).toFixed(3));
      return element;
    })));
  const kind = fields.value && fields.value.value === "target" ? "target validation" : "source validation";
  const what = fields.show.value === "best" ? "Best" : "Mean";
  const chosen = (name) => fields[name].options[fields[name].selectedIndex].text;
  const target = fields.target.value === "" ? "all targets" : `target ${chosen("target")}`;
  holder.replaceChildren(
    makeTable(heads, lines, { id: "heat-table", label: "Heat map" }),
    make("p", { class: "note" }, `${what} ${kind} accuracy in % of ${chosen("algorithm")} (${chosen("weights")}) on ${chosen("dataset")}, ${target}, with the number of runs. Trials and other settings are pooled; the stronger the color, the higher, from ${percent(low)} to ${percent(high)}.`));
}

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

startSweep();
