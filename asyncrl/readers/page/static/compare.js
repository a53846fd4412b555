// Runs side by side: which is better by how much, what differs in their recipes, curves over what they cost, and the
// tasks that two of them answered differently. The address holds what is chosen: #/compare?runs=A,B

const RECOMPARE_MILLISECONDS = 10000;
const AXES = {
  step: { title: "steps", x: "step", of: (point) => point.step },
  tokens: { title: "tokens generated", x: "tokens", of: (point) => point.tokens_generated },
  time: { title: "training time", x: "minutes", of: (point) => point.seconds / 60 },
};
const KINDS = ["second", "first", "neither"];
const COLORS = ["--accent", "--bad", "--good", "--odd", "--warn"];
const state = { there: [], runs: [], axis: "step", revision: "", asked: 0, found: null, sides: null, kind: "second", tasks: [], counts: {} };

const points = (share, digits = 1) => fixed(100 * share, digits);
const interval = (low, high) => `${points(low)}–${points(high)}`;
const colorOf = (index) => COLORS[index % COLORS.length];
const query = (more = {}) => new URLSearchParams({ runs: state.runs.join(","), ...more });

// What is chosen

function choose(changed) {
  Object.assign(state, changed);
  location.hash = link("compare", { runs: state.runs.join(",") });
}

function runBox(name) {
  const box = element("input", { type: "checkbox", checked: state.runs.includes(name), name, disabled: isExported && !embedded["/api/compare"]?.includes(name) });
  box.addEventListener("change", () => choose({ runs: box.checked ? [...state.runs, name] : state.runs.filter((each) => each !== name) }));
  return element("label", { className: "chip" }, box, name);
}

function renderForm() {
  // In one order whatever is chosen: nothing may move below the pointer.
  const names = [...new Set([...state.there.map((run) => run.name), ...state.runs])];
  byId("chosen-runs").replaceChildren(...names.map(runBox));
  byId("reference").textContent = state.runs.length > 0 ? `The others are compared with ${state.runs[0]}, which was chosen first.` : "";
}

// Which run is better

function contestItem(contest, index) {
  const { low, high, mean } = contest.difference;
  const kind = low > 0 || high < 0 ? "clear" : "unclear";
  const title = element("h3", { textContent: `${contest.name}, ${contest.measure}` });
  return element("li", { className: kind }, title, element("p", { className: "verdict", textContent: contest.text }), bar(low, mean, high, colorOf(index + 1)));
}

// The interval of a difference around zero.
function bar(low, mean, high, color) {
  const reach = Math.max(0.01, Math.abs(low), Math.abs(high)) * 1.15;
  const place = (value) => `${(50 + (50 * value) / reach).toFixed(2)}%`;
  const band = element("i", { className: "band", style: { left: place(low), right: `calc(100% - ${place(high)})`, background: `var(${color})` } });
  const dot = element("i", { className: "dot", style: { left: place(mean), background: `var(${color})` } });
  const label = (value, className) => element("span", { className, textContent: `${value > 0 ? "+" : ""}${points(value)}`, style: { left: place(value) } });
  const text = `${points(mean)} points, 95% ${points(low)} to ${points(high)}`;
  return element("div", { className: "difference", role: "img", "aria-label": text }, element("i", { className: "zero" }), band, dot, label(low, "low"), label(high, "high"));
}

// Tables

function table(id, corner, rows) {
  const heads = state.found.groups.map((group, index) => {
    const mark = element("i", { className: "mark", style: { background: `var(${colorOf(index)})` } });
    const seeds = group.runs.length > 1 ? element("span", { className: "muted", textContent: ` ${group.runs.length} seeds: ${group.seeds.join(", ")}` }) : "";
    return element("th", {}, mark, group.label, seeds);
  });
  const made = rows.map(([name, cells]) => element("tr", {}, element("th", { textContent: name }), ...cells.map((text) => element("td", { textContent: text }))));
  byId(id).replaceChildren(element("thead", {}, element("tr", {}, element("th", { textContent: corner }), ...heads)), element("tbody", {}, ...made));
}

function sampled(run, name) {
  if (!isNumber(run.last?.[`${name}_at_k`])) return "–";
  return `${name}@${run.last.k} ${points(run.last[`${name}_at_k`])}% ${interval(run.last[`${name}_low`], run.last[`${name}_high`])}`;
}

const RESULTS = [
  ["samples, correct", (run) => sampled(run, "avg")],
  ["samples, any correct", (run) => sampled(run, "pass")],
  ["response tokens", (run) => short(run.last?.response_tokens_mean ?? null)],
  ["cut at the limit", (run) => percent(run.last?.cut_share ?? null, 1)],
  ["steps", (run) => whole(run.steps)],
  ["tokens generated", (run) => short(run.tokens_generated)],
  ["tokens trained", (run) => short(run.tokens_trained)],
  ["training time", (run) => duration(run.seconds)],
];

function lastCell(group, runs) {
  const [first] = runs;
  if (group.accuracy === null) return "–";
  const { mean, low, high } = group.accuracy;
  const where = runs.length > 1 ? `: ${runs.map((run) => (run.last === null ? "–" : points(run.last.greedy_accuracy))).join(", ")}` : ` at step ${first.last.step}`;
  return `${points(mean)}% ${interval(low, high)}${where}`;
}

function renderTables() {
  const { groups, runs, recipe } = state.found;
  const members = groups.map((group) => group.runs.map((label) => runs.find((run) => run.label === label)));
  const rows = [["last held-out", groups.map((group, index) => lastCell(group, members[index]))]];
  for (const [name, text] of RESULTS) {
    // Once where all runs of a group say the same.
    const cells = members.map((each) => [...new Set(each.map(text))].join(", "));
    if (cells.some((cell) => cell !== "–")) rows.push([name, cells]);
  }
  table("results", "", rows);
  const text = (value) => (typeof value === "string" ? value : JSON.stringify(value));
  const keys = recipe.map(({ key, values }) => [key, groups.map((group) => (group.label in values ? text(values[group.label]) : "–"))]);
  table("keys", "differs in the recipe", keys.length > 0 ? keys : [["no key differs", groups.map(() => "")]]);
}

// Curves

function curveOf(group, index) {
  const axis = AXES[state.axis];
  const shownPoints = group.curve.filter((point) => isNumber(axis.of(point)));
  return {
    name: group.label,
    color: colorOf(index),
    points: shownPoints.map((point) => [axis.of(point), point.greedy_accuracy]),
    low: shownPoints.map((point) => point.low),
    high: shownPoints.map((point) => point.high),
  };
}

function renderCurves() {
  const buttons = Object.entries(AXES).map(([name, axis]) => {
    const button = element("button", { textContent: axis.title, dataset: { axis: name }, "aria-pressed": String(name === state.axis) });
    button.addEventListener("click", () => {
      state.axis = name;
      renderCurves();
    });
    return button;
  });
  byId("axes").replaceChildren("Held-out accuracy over ", ...buttons);
  const place = element("div");
  byId("compare-curves").replaceChildren(place);
  chart(place, { title: `Held-out accuracy over ${AXES[state.axis].title}`, x: AXES[state.axis].x, format: percent, series: state.found.groups.map(curveOf) });
}

// Answers

function renderSides() {
  const select = (side) => {
    const options = state.found.runs.map((run) => element("option", { value: run.label, textContent: run.label, selected: run.label === state.sides[side] }));
    const made = element("select", { "aria-label": side ? "second run" : "first run" }, ...options);
    made.addEventListener("change", () => {
      state.sides[side] = made.value;
      readTasks();
    });
    return made;
  };
  byId("sides").replaceChildren(...(state.found.runs.length > 2 ? [select(0), " and ", select(1)] : []));
}

const kindTitle = (kind) => ({ second: `right in ${state.sides[1]} alone`, first: `right in ${state.sides[0]} alone`, neither: "as right, another answer" })[kind];

function renderKinds() {
  const buttons = KINDS.map((kind) => {
    const button = element("button", { textContent: `${kindTitle(kind)} ${whole(state.counts[kind] ?? 0)}`, dataset: { kind }, "aria-pressed": String(kind === state.kind) });
    button.addEventListener("click", () => {
      state.kind = kind;
      readTasks();
    });
    return button;
  });
  byId("kinds").replaceChildren(...buttons);
}

function answerOf(name, given) {
  const facts = [given.outcome.replace("_", " "), plural(given.num_tokens, "token"), ...(given.is_cut ? ["cut at the limit"] : [])];
  const kind = { correct: "good", wrong: "bad" }[given.outcome] ?? "warn";
  const head = element("p", {}, element("b", { textContent: name }), " ", element("span", { className: kind, textContent: facts.join(", ") }));
  const said = given.extracted === null ? [] : [element("p", { className: "said" }, "answer ", element("code", { textContent: given.extracted }))];
  return element("div", {}, head, ...said, element("pre", { textContent: given.text ?? "The text was not kept." }));
}

function taskCard(task) {
  const prompt = element("pre", { className: "prompt", textContent: task.prompt });
  const sides = element("div", { className: "sides" }, answerOf(state.sides[0], task.first), answerOf(state.sides[1], task.second));
  return element("article", { tabIndex: 0, dataset: { row: task.task_id } }, element("p", { className: "muted", textContent: task.task_id }), prompt, sides);
}

// The first tasks of the chosen kind, or `offset` and those behind it.
async function readTasks(offset = 0) {
  const turn = currentTurn();
  const { kind } = state;
  const [first, second] = state.sides;
  const answer = first === second ? { counts: {}, tasks: [] } : await ask(`/api/compare/answers?${new URLSearchParams({ runs: `${first},${second}`, kind, offset })}`);
  if (turn !== currentTurn() || kind !== state.kind) return;
  state.counts = answer.counts;
  state.tasks = offset === 0 ? answer.tasks : [...state.tasks, ...answer.tasks];
  renderKinds();
  byId("differing").replaceChildren(...state.tasks.map(taskCard));
  byId("more").hidden = isExported || state.tasks.length >= (state.counts[kind] ?? 0);
  byId("no-tasks").hidden = state.tasks.length > 0;
  byId("held").hidden = !isExported || state.tasks.length >= (state.counts[kind] ?? 0);
  byId("held").textContent = `An exported page holds the first ${state.tasks.length} of them.`;
}

// The whole

function render() {
  const { found } = state;
  byId("verdicts").replaceChildren(...found.pairs.flatMap((pair, index) => pair.contests.map((contest) => contestItem(contest, index))));
  renderTables();
  renderCurves();
  renderSides();
  byId("remarks").replaceChildren(...[...found.remarks, found.method].map((text) => element("p", { textContent: text })));
}

async function refresh() {
  const turn = currentTurn();
  const answer = await ask(`/api/compare?${query({ after: state.revision })}`);
  if (turn !== currentTurn()) return;
  Object.assign(state, { revision: answer.revision, asked: Date.now() });
  if (answer.comparison === null) return;
  state.found = answer.comparison;
  const labels = state.found.groups.map((group) => group.runs[0]);
  const runs = state.found.runs.map((run) => run.label);
  if (state.sides === null || !state.sides.every((label) => runs.includes(label))) state.sides = labels.length > 1 ? labels.slice(0, 2) : runs.slice(0, 2);
  byId("compared").hidden = false;
  render();
  if (state.tasks.length <= 20) await readTasks();
}

function build(root) {
  const more = element("button", { id: "more", textContent: "more", hidden: true });
  more.addEventListener("click", () => readTasks(state.tasks.length));
  root.replaceChildren(
    element("form", { id: "choice", onsubmit: () => false }, element("div", { id: "chosen-runs" })),
    element("p", { id: "reference", className: "hint" }),
    element("p", { id: "too-few", className: "hint", textContent: isExported ? "An exported page compares two of its runs, or all of them." : "Choose two runs or more. Runs that differ in their seed alone form one group." }),
    element(
      "div",
      { id: "compared", hidden: true },
      element("ul", { id: "verdicts" }),
      element(
        "div",
        { id: "tables" },
        element("div", { className: "wide" }, element("table", { id: "results" })),
        element("div", { className: "wide" }, element("table", { id: "keys" })),
      ),
      element("p", { id: "axes" }),
      element("div", { id: "compare-curves" }),
      element("h2", { textContent: "Held-out tasks that were answered differently" }),
      element("p", { id: "sides" }),
      element("p", { id: "kinds" }),
      element("div", { id: "differing" }),
      element("p", { id: "no-tasks", className: "hint", hidden: true, textContent: "No such task." }),
      more,
      element("p", { id: "held", className: "hint", hidden: true }),
      element("div", { id: "remarks", className: "hint" }),
    ),
  );
}

views.compare = {
  title: "Compare",
  async show(root, run, rest) {
    if (byId("choice") === null) build(root);
    const all = (isExported && embedded["/api/compare"]) || [];
    const chosen = (rest.query.get("runs") ?? all.join(",")).split(",").filter(Boolean);
    // All of an exported document are compared with the first one.
    const isAll = isExported && chosen.length === all.length && all.every((name) => chosen.includes(name));
    const runs = isAll && all.length > 2 ? all : chosen;
    Object.assign(state, { runs, revision: "", tasks: [] });
    const turn = currentTurn();
    const answer = await ask("/api/runs");
    if (turn !== currentTurn()) return;
    state.there = answer.runs;
    noteChains(answer.chains.length > 0);
    const isFew = state.runs.length < 2 || (isExported && state.runs.length > 2 && !isAll);
    renderForm();
    byId("too-few").hidden = !isFew;
    byId("compared").hidden = byId("compared").hidden || isFew;
    if (!isFew) await refresh();
  },
  async update() {
    if (state.runs.length > 1 && Date.now() - state.asked >= RECOMPARE_MILLISECONDS) await refresh();
  },
};
