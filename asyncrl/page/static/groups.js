// Groups of a run: a list on the left, the chosen one token by token on the right.

const PAGE_SIZE = 100;
const state = { run: null, groups: [], chosen: null, shown: "", coloring: "version" };

// An exported document holds all its groups under one path: it filters them here.
function matches(group, filter) {
  return (
    (!filter.state || group.state === filter.state) &&
    (!filter.outcome || group[`num_${filter.outcome}`] > 0) &&
    (filter.step === undefined || group.step === Number(filter.step)) &&
    (filter.before === undefined || group.group_id < filter.before)
  );
}

async function askGroups(filter) {
  if (isExported) return (await ask(api(state.run, "groups"))).filter((group) => matches(group, filter)).slice(0, PAGE_SIZE);
  return ask(`${api(state.run, "groups")}?${new URLSearchParams(filter)}`);
}

const range = (low, high) => (low === null ? "–" : low === high ? `v${low}` : `v${low}–${high}`);
const words = { open: "generating", ready: "waiting to be taken", taken: "taken" };

function fate(group) {
  if (group.state === "dropped") return `dropped: ${group.reason}`;
  if (group.state === "trained") return `step ${group.step}`;
  return words[group.state] + (group.state === "taken" ? ` at step ${group.step}` : "");
}

function filter() {
  return Object.fromEntries([...new FormData(byId("filters"))].filter(([, value]) => value !== ""));
}

// The list

function outcomes(group) {
  const marks = element("span", { className: "marks" });
  let left = group.num_trajectories;
  for (const outcome of ["correct", "wrong", "no_answer", "fault"]) {
    for (let i = 0; i < group[`num_${outcome}`]; i += 1, left -= 1) {
      marks.append(element("i", { className: outcome, title: outcome.replace("_", " ") }));
    }
  }
  for (; left > 0; left -= 1) marks.append(element("i", { title: "no verdict yet" }));
  return marks;
}

function groupRow(group) {
  const cell = (...children) => element("td", {}, ...children);
  const row = element(
    "tr",
    { tabIndex: 0, className: group.group_id === state.chosen ? "chosen" : "", dataset: { row: "", group: group.group_id } },
    cell(String(group.group_id)),
    cell(fate(group)),
    cell(outcomes(group)),
    cell(number(group.reward)),
    cell(whole(group.tokens)),
    cell(range(group.version_min, group.version_max)),
  );
  row.title = group.prompt.slice(0, 200);
  row.addEventListener("click", () => (location.hash = link(state.run, "groups", group.group_id)));
  return row;
}

function renderList() {
  byId("groups").replaceChildren(...state.groups.map(groupRow));
  byId("empty").hidden = state.groups.length > 0;
  byId("more").hidden = state.groups.length === 0 || state.groups.length % PAGE_SIZE !== 0;
}

// One group

// The golden angle keeps neighbouring versions far apart on the colour circle, however many there are.
const versionColor = (version) => `hsl(${(205 + version * 137.508) % 360} 75% 50% / 0.28)`;
// null: the log-prob was no finite number.
const probabilityColor = (logprob) => (logprob === null ? "transparent" : `hsl(${Math.round(120 * Math.exp(logprob))} 75% 50% / 0.3)`);

function colorTokens() {
  for (const token of document.querySelectorAll(".token")) {
    const { version, logprob } = token.dataset;
    token.style.background =
      state.coloring === "version" ? versionColor(Number(version)) : probabilityColor(JSON.parse(logprob));
  }
}

function tokenSpan([text, id, logprob], segment, position, begins) {
  const isSpecial = /^<\|.*\|>$/.test(text) || text === "";
  const token = element("span", { className: "token", textContent: text === "" ? "·" : text.replace(/\n/g, "↵\n") });
  token.classList.toggle("begins", begins);
  token.classList.toggle("special", isSpecial);
  Object.assign(token.dataset, { version: segment.version, logprob });
  const staleness = segment.staleness === null ? "" : `, staleness ${segment.staleness}`;
  token.dataset.tip =
    `token ${position} (id ${id})\nversion ${segment.version}${staleness}\n` +
    (logprob === null ? "log-prob not finite" : `log-prob ${logprob.toFixed(4)} (${(100 * Math.exp(logprob)).toFixed(1)}%)`) +
    (segment.is_continued ? "\ncontinued over keys and values of an older version" : "");
  return token;
}

function responseText(trajectory) {
  const text = element("pre");
  let position = 0;
  trajectory.segments.forEach((segment, index) => {
    segment.tokens.forEach((token, offset) => {
      text.append(tokenSpan(token, segment, position, index > 0 && offset === 0));
      position += 1;
    });
  });
  if (trajectory.runs) text.append("compacted: the tokens of this step are no longer kept (replay.keep_steps)");
  else if (position === 0) text.append("no token yet");
  return text;
}

function segmentChips(trajectory) {
  const chips = element("div", { className: "segments" });
  for (const segment of trajectory.segments) {
    const staleness = segment.staleness === null ? "" : `, staleness ${segment.staleness}`;
    const kind = segment.is_continued ? ", continued in place" : "";
    const chip = element("i", { textContent: `v${segment.version}: ${segment.tokens.length} tokens${staleness}${kind}` });
    chip.style.background = versionColor(segment.version);
    chips.append(chip);
  }
  return chips;
}

function trajectoryCard(trajectory) {
  const lengths = trajectory.runs ? trajectory.runs.map((run) => run[1]) : trajectory.segments.map((segment) => segment.tokens.length);
  const length = lengths.reduce((sum, each) => sum + each, 0);
  const outcome = trajectory.outcome ?? "no verdict yet";
  const facts = [`reward ${number(trajectory.reward)}`, `advantage ${number(trajectory.advantage)}`, `${length} tokens`];
  if (trajectory.finish) facts.push(trajectory.finish === "length" ? "cut at the length limit" : "ended by itself");
  if (trajectory.verify_seconds !== null) facts.push(`verified in ${(1000 * trajectory.verify_seconds).toFixed(1)} ms`);
  const head = element(
    "div",
    { className: "head" },
    element("b", { textContent: trajectory.trajectory_id }),
    element("em", { className: `badge ${trajectory.outcome ?? ""}`, textContent: outcome.replace("_", " ") }),
    ...facts.map((fact) => element("span", { textContent: fact })),
  );
  const why = [trajectory.extracted === null ? null : `answer: ${trajectory.extracted}`, trajectory.detail].filter(Boolean);
  return element(
    "article",
    {},
    head,
    ...(why.length ? [element("div", { className: "why", textContent: why.join(" · ") })] : []),
    element("div", {}, responseText(trajectory)),
    segmentChips(trajectory),
  );
}

function coloringTools() {
  const choice = (value, text) => {
    const input = element("input", { type: "radio", name: "coloring", value, checked: state.coloring === value });
    input.addEventListener("change", () => {
      state.coloring = value;
      colorTokens();
    });
    return element("label", {}, input, ` ${text}`);
  };
  return element("div", { className: "tools" }, "Colour:", choice("version", "policy version"), choice("probability", "probability"));
}

function groupView(group) {
  const title = element("h2", { textContent: `Group ${group.group_id} · ${group.task_id}` });
  const sentence = group.state === "trained" ? `trained at step ${group.step}` : fate(group);
  const admitted = element("p", { className: "fate", textContent: `${sentence}, admitted at version ${group.admitted_version}` });
  const prompt = element("pre", { className: "prompt", textContent: group.prompt });
  return [title, admitted, prompt, coloringTools(), ...group.trajectories.map(trajectoryCard)];
}

async function reload() {
  const turn = currentTurn();
  const groups = await askGroups(filter());
  if (turn !== currentTurn()) return;
  state.groups = groups;
  renderList();
}

async function older() {
  const last = state.groups[state.groups.length - 1].group_id;
  const more = await askGroups({ ...filter(), before: last });
  state.groups.push(...more);
  renderList();
  if (more.length === 0) byId("more").hidden = true;
}

async function showGroup(id) {
  const isNew = state.chosen !== id;
  state.chosen = id;
  for (const row of byId("groups").children) row.classList.toggle("chosen", Number(row.dataset.group) === id);
  const group = await ask(api(state.run, "groups", id));
  const content = JSON.stringify(group);
  // A late answer to an earlier click, or nothing new: leave the page and what is selected on it alone.
  if (state.chosen !== id || !byId("group") || (!isNew && content === state.shown)) return;
  state.shown = content;
  byId("group").replaceChildren(...groupView(group));
  if (isNew) byId("group").scrollTop = 0;
  colorTokens();
}

function choices(name, ...values) {
  const option = (value) => element("option", { value, textContent: value === "" ? `any ${name}` : value.replace("_", " ") });
  return element("select", { name, "aria-label": name }, ...["", ...values].map(option));
}

function listPane() {
  const filters = element(
    "form",
    { id: "filters" },
    choices("state", "open", "ready", "taken", "trained", "dropped"),
    choices("outcome", "correct", "wrong", "no_answer", "fault"),
    element("input", { name: "step", type: "number", min: 1, placeholder: "step", "aria-label": "step", dataset: { search: "" } }),
  );
  const titles = ["group", "fate", "outcomes", "reward", "tokens", "by"].map((title) => element("th", { textContent: title }));
  const more = element("button", { id: "more", hidden: true, textContent: "Older groups" });
  filters.addEventListener("input", reload);
  filters.addEventListener("submit", (event) => event.preventDefault());
  more.addEventListener("click", older);
  return element(
    "div",
    { id: "list" },
    filters,
    element("table", {}, element("thead", {}, element("tr", {}, ...titles)), element("tbody", { id: "groups" })),
    element("p", { id: "empty", hidden: true, textContent: "No group matches." }),
    more,
  );
}

views.groups = {
  title: "Groups",
  async show(root, run, rest) {
    if (!root.firstChild) {
      Object.assign(state, { run, groups: [], chosen: null, shown: "" });
      const hint = "Choose a group to see its prompt, its responses token by token, and their fate.";
      root.append(listPane(), element("div", { id: "group" }, element("p", { className: "hint", textContent: hint })));
    }
    const step = rest.query.get("step");
    if (step !== null) byId("filters").elements.step.value = step;
    if (state.groups.length === 0 || step !== null) await reload();
    if (rest.path.length > 0) await showGroup(Number(rest.path[0]));
  },
  async update() {
    // While older pages are open the list stands still: a list that moves cannot be read.
    if (state.groups.length <= PAGE_SIZE && byId("list").scrollTop === 0) await reload();
    if (state.chosen !== null) await showGroup(state.chosen);
  },
};
