// Curves of a run: columns of its metrics over steps or time. Keeps what it has and asks for what is new.

// RUN_CHARTS is asyncrl/observe/metrics/charts.py; a chart with a family has a line for each column that begins so.
const heldoutOf = ({ heldout, bounds }) => ({ evaluated: heldout, low: bounds?.[0], high: bounds?.[1], name: "held-out, greedy", color: "--accent" });
const linesOf = (one) => [...(one.heldout ? [heldoutOf(one)] : []), ...one.lines.map((line, index) => ({ ...line, color: index > 0 || one.heldout ? "--warn" : undefined }))];
const formatOf = (unit) => (unit === "share" ? (value) => percent(value, value > 0 && value < 0.1 ? 2 : 0) : undefined);
const CHARTS = RUN_CHARTS.filter((one) => !one.family).map((one) => ({ title: one.title, format: formatOf(one.unit), lines: linesOf(one) }));
const FAMILIES = RUN_CHARTS.filter((one) => one.family).map((one) => ({ title: one.title, format: formatOf(one.unit), prefix: one.family }));
const DEFAULT_COLUMNS = [...new Set(CHARTS.flatMap((one) => one.lines.map((line) => line.column).filter(Boolean)))];
const fresh = () => ({ cursor: "", steps: [], seconds: [], columns: {}, names: new Set(), evaluations: [], sets: [] });
const state = { run: null, root: null, data: fresh(), chosen: [], charts: [], axis: "step", smoothing: 0, isLog: false };

const ofFamily = (prefix) => [...state.data.names].filter((name) => name.startsWith(prefix)).sort();
const columns = () => [...new Set([...DEFAULT_COLUMNS, ...FAMILIES.flatMap((one) => ofFamily(one.prefix)), ...state.chosen])];

async function askNew() {
  if (isExported) return ask(api(state.run, "curves"));
  return ask(`${api(state.run, "curves")}?${new URLSearchParams({ columns: columns().join(","), after: state.data.cursor })}`);
}

// Adds an answer to what is there: drops what it supersedes, then appends.
function take(answer) {
  if (answer.is_whole) state.data = fresh();
  const { data } = state;
  const last = Math.min(answer.keep_to ?? Infinity, (answer.steps[0] ?? Infinity) - 1);
  const kept = data.steps.findLastIndex((step) => step <= last) + 1;
  const isNew = answer.is_whole || answer.steps.length > 0 || kept < data.steps.length || answer.evaluations.length !== data.evaluations.length || answer.sets.length !== data.sets.length;
  const join = (there, added) => [...(there ?? []).slice(0, kept), ...added];
  for (const name of Object.keys(answer.columns)) data.columns[name] = join(data.columns[name], answer.columns[name]);
  data.seconds = join(data.seconds, answer.seconds);
  data.steps = join(data.steps, answer.steps);
  answer.names.forEach((name) => data.names.add(name));
  Object.assign(data, { cursor: answer.cursor, evaluations: answer.evaluations, sets: answer.sets });
  return isNew;
}

const begin = () => Math.min(state.data.seconds[0] ?? Infinity, state.data.evaluations[0]?.seconds ?? Infinity);
const place = (step, seconds) => (state.axis === "step" ? step : (seconds - begin()) / 60);

function seriesOf(line) {
  const { data } = state;
  const { name, color } = line;
  if (line.set) {
    const rows = data.sets.filter((row) => row.name === line.set && isNumber(row.accuracy));
    const points = rows.map((row) => [place(row.step, row.seconds), row.accuracy]);
    return { name, color, points, low: rows.map((row) => row.low), high: rows.map((row) => row.high) };
  }
  if (line.evaluated) {
    const rows = data.evaluations.filter((row) => isNumber(row[line.evaluated]));
    const points = rows.map((row) => [place(row.step, row.seconds), row[line.evaluated]]);
    const bounds = line.low ? { low: rows.map((row) => row[line.low]), high: rows.map((row) => row[line.high]) } : {};
    return { name, color, points, ...bounds };
  }
  const values = data.columns[line.column] ?? [];
  return { name, color, points: data.steps.map((step, index) => [place(step, data.seconds[index]), values[index] ?? null]) };
}

function optionsOf(one) {
  return {
    title: one.title,
    format: one.format,
    series: one.lines.map(seriesOf),
    x: state.axis === "step" ? "step" : "minutes",
    isLog: state.isLog,
    smoothing: state.smoothing,
    onPick: pick,
  };
}

// The trajectories of the step nearest to x.
function pick(x) {
  const { steps, seconds } = state.data;
  const distances = steps.map((step, index) => Math.abs(place(step, seconds[index]) - x));
  const nearestStep = steps[distances.indexOf(Math.min(...distances))];
  if (nearestStep !== undefined) location.hash = link(state.run, "groups", { step: nearestStep });
}

const memberName = (column, prefix) => column.slice(prefix.length).replace(/^_(by_source_)?/, "") || "all";

function chartsOfFamilies() {
  const charts = FAMILIES.map(({ title, prefix, format }) => ({ title, format, lines: ofFamily(prefix).map((column) => ({ column, name: memberName(column, prefix) })) }));
  return charts.filter((one) => one.lines.length > 0);
}

// Benchmarks and named held-out sets, each a line: greedy accuracy, or avg@k where it has only samples.
function chartsOfSets() {
  const names = [...new Set(state.data.sets.map((row) => row.name))];
  return names.length > 0 ? [{ title: "Accuracy of benchmarks and held-out sets", format: percent, lines: names.map((name) => ({ set: name, name })) }] : [];
}

const wanted = () => [...CHARTS, ...chartsOfSets(), ...chartsOfFamilies(), ...state.chosen.map((name) => ({ title: name, lines: [{ column: name, name }], isChosen: true }))];

function redraw() {
  const charts = wanted();
  if (state.charts.length !== charts.length) {
    state.charts.forEach((each) => each.remove());
    state.charts = charts.map((one) => chart(byId("charts"), optionsOf(one)));
  } else {
    charts.forEach((one, index) => state.charts[index].update(optionsOf(one)));
  }
  byId("begun").hidden = state.data.steps.length + state.data.evaluations.length > 0;
  renderNames();
}

function renderNames() {
  const unused = [...state.data.names].filter((name) => !columns().includes(name)).sort();
  if (byId("names").childElementCount === unused.length) return;
  byId("names").replaceChildren(...unused.map((name) => element("option", { value: name })));
}

async function refresh() {
  const turn = currentTurn();
  const asked = columns().length;
  const answer = await askNew();
  if (turn !== currentTurn() || !take(answer)) return;
  redraw();
  if (columns().length === asked) return;
  // Members of families that were not known before: their earlier values are not there yet.
  state.data.cursor = "";
  await refresh();
}

async function choose(name) {
  if (!state.data.names.has(name) || columns().includes(name)) return;
  state.chosen.push(name);
  // Its earlier values are not there yet.
  state.data.cursor = "";
  await refresh();
}

async function forget() {
  state.chosen = [];
  redraw();
}

function controls() {
  const axis = element("select", { "aria-label": "horizontal axis" }, element("option", { value: "step", textContent: "over steps" }), element("option", { value: "time", textContent: "over time" }));
  axis.value = state.axis;
  axis.addEventListener("change", () => {
    state.axis = axis.value;
    chartGroup(byId("charts")).range = null;
    redraw();
  });
  const smoothing = element("input", { type: "range", min: 0, max: 0.95, step: 0.05, value: state.smoothing, "aria-label": "smoothing" });
  smoothing.addEventListener("input", () => {
    state.smoothing = Number(smoothing.value);
    redraw();
  });
  const isLog = element("input", { type: "checkbox", checked: state.isLog, id: "is-log" });
  isLog.addEventListener("change", () => {
    state.isLog = isLog.checked;
    redraw();
  });
  const search = element("input", { type: "search", id: "column", placeholder: "add a column", "aria-label": "add a column" });
  search.setAttribute("list", "names");
  search.addEventListener("change", async () => {
    const name = search.value.trim();
    search.value = "";
    await choose(name);
  });
  const reset = element("button", { textContent: "Remove added", title: "show the usual curves alone" });
  reset.addEventListener("click", forget);
  return element(
    "div",
    { className: "controls" },
    axis,
    element("label", {}, "smooth", smoothing),
    element("label", {}, isLog, "log"),
    search,
    element("datalist", { id: "names" }),
    reset,
    element("span", { className: "hint", textContent: "drag: zoom · double click: all · click: trajectories of the step" }),
  );
}

views.curves = {
  title: "Curves",
  async show(root, run) {
    if (state.run !== run || !root.firstChild) {
      state.charts.forEach((each) => each.remove());
      if (state.run !== run) Object.assign(state, { data: fresh(), chosen: [] });
      Object.assign(state, { run, charts: [] });
      root.replaceChildren(controls(), element("p", { id: "begun", className: "hint", hidden: true, textContent: "No step has ended yet." }), element("div", { id: "charts", className: "charts" }));
      if (state.data.cursor !== "") redraw();
    }
    await refresh();
  },
  update: refresh,
};
