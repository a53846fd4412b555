// Groups of a run: a list on the left, the chosen one token by token on the right.
// One view, one file: longer than others.

const PAGE_SIZE = 100;
const SEARCH_PAGE = 30;
const state = { run: null, groups: [], chosen: null, shown: null, hasEnded: false, coloring: "version", outcome: "", asked: {}, search: null };
const CHIPS = { reason: "dropped: ", repeated: "trained again in step ", admitted: "admitted at version ", task: "task " };

// An exported document holds all its groups under one path: it filters them here.
function matches(group, filter) {
  return (
    (!filter.state || group.state === filter.state) &&
    (!filter.outcome || group[`num_${filter.outcome}`] > 0) &&
    (filter.repeated === undefined || embedded[`/api/runs/${state.run}/groups/${group.group_id}`].repeated_steps.includes(Number(filter.repeated))) &&
    (filter.step === undefined || group.step === Number(filter.step)) &&
    (!filter.reason || group.reason === filter.reason) &&
    (filter.admitted === undefined || group.admitted_version === Number(filter.admitted)) &&
    (!filter.task || group.task_id === filter.task) &&
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

// What the form and the chips ask for. Chips come with links of other views.
function filter() {
  const form = [...new FormData(byId("filters"))].filter(([name, value]) => value !== "" && name !== "text");
  return { ...state.asked, ...Object.fromEntries(form) };
}

function renderChips() {
  const chip = ([name, value]) => {
    const button = element("button", { className: "chip", type: "button", textContent: `${CHIPS[name]}${value} ✕`, title: "show others too" });
    button.addEventListener("click", () => {
      delete state.asked[name];
      renderChips();
      reload();
    });
    return button;
  };
  byId("chips").replaceChildren(...Object.entries(state.asked).map(chip));
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
    { tabIndex: 0, dataset: { row: "", group: group.group_id } },
    cell(String(group.group_id)),
    cell(fate(group)),
    cell(outcomes(group)),
    cell(number(group.reward)),
    cell(whole(group.tokens), ...(group.observed_tokens ? [element("small", { className: "muted", textContent: ` +${whole(group.observed_tokens)}`, title: "tokens of answers to turns: observed, not trained" })] : [])),
    cell(range(group.version_min, group.version_max)),
  );
  row.title = group.prompt.slice(0, 200);
  row.addEventListener("click", () => (location.hash = link(state.run, "groups", group.group_id)));
  return row;
}

function markChosen() {
  for (const row of byId("groups").children) row.classList.toggle("chosen", Number(row.dataset.group) === state.chosen);
}

function renderList() {
  byId("list").classList.toggle("searching", state.search !== null);
  if (state.search !== null) return renderHits();
  replaceRows(byId("groups"), state.groups, groupRow);
  markChosen();
  byId("empty").textContent = "No group matches.";
  byId("empty").hidden = state.groups.length > 0;
  byId("more").textContent = "Older groups";
  byId("more").hidden = state.groups.length === 0 || state.groups.length % PAGE_SIZE !== 0;
}

// Search: the server reads backwards for half a second at a time; the next stretch follows until a page is full.

function hitRow(hit) {
  const where = hit.trajectory_id === null ? "prompt" : hit.is_observed ? `sample ${hit.sample}, a call or an answer to a turn` : `sample ${hit.sample}`;
  const row = element(
    "tr",
    { tabIndex: 0, dataset: { row: hit.trajectory_id ?? "prompt", group: hit.group_id } },
    element("td", { textContent: hit.group_id }),
    element("td", {}, where, ...(hit.outcome ? [" ", element("i", { className: `dot ${hit.outcome}`, title: hit.outcome.replace("_", " ") })] : [])),
    element("td", { className: "excerpt", colSpan: 4 }, hit.before, element("mark", { textContent: hit.match }), hit.after),
  );
  row.addEventListener("click", () => (location.hash = link(state.run, "groups", hit.group_id)));
  return row;
}

function renderHits() {
  const { hits, below, isRunning } = state.search;
  replaceRows(byId("groups"), hits, hitRow);
  markChosen();
  const where = below > 0 ? ` Groups below ${below} are not searched yet.` : " All groups are searched.";
  // An update may come before the first answer.
  byId("empty").textContent = below === null ? "Searching." : `${plural(hits.length, "hit")}.${where}`;
  byId("empty").hidden = false;
  byId("more").textContent = "Search older groups";
  byId("more").hidden = isRunning || below === 0;
}

async function searchOn() {
  const search = state.search;
  const wanted = search.hits.length + SEARCH_PAGE;
  search.isRunning = true;
  while (state.search === search && search.below !== 0 && search.hits.length < wanted) {
    const query = new URLSearchParams({ text: search.text, ...(search.below === null ? {} : { below: search.below }) });
    const found = isExported ? searchExported(state.run, search.text) : await ask(`${api(state.run, "search")}?${query}`);
    search.hits.push(...found.hits);
    search.below = found.below;
    if (state.search === search && byId("groups")) renderHits();
  }
  search.isRunning = false;
  if (state.search === search && byId("groups")) renderHits();
}

async function searchText(text) {
  state.search = text === "" ? null : { text, hits: [], below: null, isRunning: true };
  byId("list").classList.toggle("searching", text !== "");
  if (text === "") return renderList();
  byId("groups").replaceChildren();
  await searchOn();
}

// One group

// The golden angle keeps neighbouring versions far apart on the colour circle, however many there are.
const versionColor = (version) => `hsl(${(205 + version * 137.508) % 360} 75% 50% / 0.28)`;
// Colours say how far a number is from the usual one, which has none: they read on light and dark ground alike.
const shade = (rgb, strength) => `rgb(${rgb} / ${(0.62 * Math.min(1, Math.max(0, strength))).toFixed(3)})`;
const twoSided = (low, high) => (x) => (x < 0 ? shade(low, -x) : shade(high, x));
const ratioShade = twoSided("0 114 178", "213 94 0");
const advantageShade = twoSided("213 60 20", "0 158 115");
const FULL_LOG_RATIO = Math.log(2);
const FULL_ENTROPY = 3;
// A coloring: what it is called, the colour of a token (null: the number is not known) and its legend.
const COLORINGS = {
  version: { title: "version", color: (token) => versionColor(token.version), legend: [["each version has its color; a bar marks where the next one takes over", "transparent"]] },
  probability: {
    title: "probability",
    color: (token) => (token.logprob === null ? null : shade("213 94 0", 1 - Math.exp(token.logprob))),
    legend: [["100%", shade("213 94 0", 0)], ["50%", shade("213 94 0", 0.5)], ["0%, when it was sampled", shade("213 94 0", 1)]],
  },
  ratio: {
    title: "importance ratio",
    color: (token) => (token.ratio === null ? null : ratioShade(token.ratio / FULL_LOG_RATIO)),
    legend: [["½ or less: the trainer finds it less likely", ratioShade(-1)], ["1", ratioShade(0)], ["2 or more: more likely than when it was sampled", ratioShade(1)]],
  },
  entropy: {
    title: "entropy",
    color: (token) => (token.entropy === null ? null : shade("138 43 226", token.entropy / FULL_ENTROPY)),
    legend: [["0 nats: certain", shade("138 43 226", 0)], ["1.5", shade("138 43 226", 0.5)], ["3 and more", shade("138 43 226", 1)]],
  },
  advantage: {
    title: "advantage",
    color: (token) => (token.advantage === null ? null : advantageShade(token.advantage / (state.largest || 1))),
    legend: [["less likely by training", advantageShade(-1)], ["0", advantageShade(0)], ["more likely by training", advantageShade(1)]],
  },
  teacher: {
    title: "teacher",
    color: (token) => (token.teacher === null || token.logprob === null ? null : ratioShade((token.teacher - token.logprob) / FULL_LOG_RATIO)),
    legend: [["½ or less: the teacher finds it less likely", ratioShade(-1)], ["as likely", ratioShade(0)], ["2 or more: more likely than the policy", ratioShade(1)]],
  },
};
// What a token's element stands for.
const known = new WeakMap();

function colorTokens() {
  const { color, legend } = COLORINGS[state.coloring];
  for (const span of document.querySelectorAll(".token")) span.style.background = color(known.get(span)) ?? "transparent";
  for (const note of document.querySelectorAll(".unknown")) note.hidden = !["ratio", "entropy"].includes(state.coloring);
  const entry = ([text, background]) => element("li", {}, ...(background === "transparent" && legend.length === 1 ? [] : [element("i", { style: { background } })]), text);
  byId("legend").replaceChildren(...legend.map(entry));
}

function showOutcome() {
  for (const card of document.querySelectorAll("#group article")) card.hidden = state.outcome !== "" && card.dataset.outcome !== state.outcome;
}

function tokenSpan([text, id, logprob, ratio = null, entropy = null, advantage = null, teacher = null], segment, position, begins, trajectory) {
  const isSpecial = /^<\|.*\|>$/.test(text) || text === "";
  const token = element("span", { className: "token", textContent: text === "" ? "·" : text.replace(/\n/g, "↵\n") });
  token.classList.toggle("begins", begins);
  token.classList.toggle("special", isSpecial);
  // Where no step kept numbers of its tokens, each has its trajectory's advantage.
  const own = advantage ?? trajectory.advantage;
  known.set(token, { version: segment.version, logprob, ratio, entropy, advantage: own, teacher, text });
  const staleness = segment.staleness === null ? "" : `, staleness ${segment.staleness}`;
  token.dataset.tip =
    `token ${position} (id ${id})\nversion ${segment.version}${staleness}\n` +
    (logprob === null ? "log-prob not finite" : `log-prob ${logprob.toFixed(4)} (${percent(Math.exp(logprob), 1)})`) +
    (segment.is_continued ? "\ncontinued over keys and values of an older version" : "") +
    (ratio === null ? "" : `\nimportance ratio ${short(Math.exp(ratio))} (log ${ratio.toFixed(3)}) in step ${trajectory.trained_step}`) +
    (entropy === null ? "" : `\nentropy ${entropy.toFixed(3)} nats`) +
    (teacher === null ? "" : `\nteacher's log-prob ${teacher.toFixed(4)} (${percent(Math.exp(teacher), 1)})`) +
    (isNumber(own) ? `\nadvantage ${own.toFixed(3)}` : "");
  return token;
}

// The sampled tokens of each turn, and between them what was observed.
function responseText(trajectory) {
  const all = [element("pre")];
  let before = null;
  for (const part of partsOf(trajectory)) {
    if (isObserved(part)) {
      all.push(observedBlock(part), element("pre"));
      continue;
    }
    const begins = before !== null && before.version !== part.version;
    part.tokens.forEach((token, offset) => all.at(-1).append(tokenSpan(token, part, part.position + offset, begins && offset === 0, trajectory)));
    before = part;
  }
  const text = all.at(-1);
  if (trajectory.compacted) text.append("compacted: the tokens of this step are no longer kept (replay.keep_steps)");
  else if (!trajectory.has_text) text.append(fetchButton(trajectory));
  else if (trajectory.num_tokens === 0) text.append("no token yet");
  else if (!text.hasChildNodes() && trajectory.observations.at(-1)?.num_tokens === 0) text.append("the next turn begins a branch, which has a context of its own");
  else if (!text.hasChildNodes()) text.append(trajectory.finish === null ? "no token of the next turn yet" : "no token: what was observed left no room for another turn");
  return all;
}

// The text of a trajectory that was too long to come with its group.
function fetchButton(trajectory) {
  const button = element("button", { textContent: `Show its ${whole(trajectory.num_tokens + trajectory.num_observed_tokens)} tokens` });
  button.addEventListener("click", async () => {
    const card = button.closest("article");
    const [, branch] = trajectory.trajectory_id.split(".");
    const name = branch === undefined ? trajectory.sample : `${trajectory.sample}.${branch}`;
    card.replaceWith(trajectoryCard(await ask(api(state.run, "groups", trajectory.group_id, name)), card.dataset.continues));
    colorTokens();
  });
  return button;
}

function segmentChips(trajectory) {
  const chips = element("div", { className: "segments" });
  for (const segment of trajectory.segments) {
    const staleness = segment.staleness === null ? "" : `, staleness ${segment.staleness}`;
    const kind = segment.is_continued ? ", continued in place" : "";
    const chip = element("i", { textContent: `v${segment.version}: ${segment.num_tokens} tokens${staleness}${kind}` });
    chip.style.background = versionColor(segment.version);
    chips.append(chip);
  }
  return chips;
}

// The trajectories of a group as cards. A context behind a summary continues the card before it: one story, with the cut marked.
function trajectoryCards(trajectories) {
  const outcomes = new Map(trajectories.map((each) => [each.trajectory_id, each.outcome ?? "none"]));
  const endsInSummary = (each) => each?.observations.at(-1)?.messages.at(-1)?.role === "summary";
  return trajectories.map((each, place) => {
    const isContinued = each.branch_of !== null && endsInSummary(trajectories[place - 1]);
    return trajectoryCard(each, isContinued ? outcomes.get(each.branch_of) : undefined);
  });
}

// `continues`: the outcome of the trajectory that it continues behind a summary.
function trajectoryCard(trajectory, continues) {
  const lengths = trajectory.compacted ? trajectory.compacted.map((segment) => segment[1]) : [trajectory.num_tokens];
  const length = lengths.reduce((sum, each) => sum + each, 0);
  const own = trajectory.branch_verdict;
  const judged = trajectory.branch_of === null ? trajectory.outcome : (own?.outcome ?? null);
  const unjudged = trajectory.branch_of === null ? "no verdict yet" : `branch of ${trajectory.branch_of}`;
  const outcome = continues !== undefined ? "continues behind the summary" : (judged ?? unjudged);
  const facts = [`reward ${number(trajectory.reward)}`, `advantage ${number(trajectory.advantage)}`, `${length} tokens`];
  if (trajectory.observations.length > 0) facts.push(`${whole(trajectory.num_observed_tokens)} observed`, plural(trajectory.observations.length + 1, "turn"));
  if (trajectory.role) facts.unshift(`role ${trajectory.role}`);
  if (own !== null) facts.push(`this conversation alone: ${own.outcome.replace("_", " ")}, reward ${number(own.reward)}`);
  for (const [name, score] of Object.entries(trajectory.scores ?? {})) facts.push(`${name} ${number(score)}`);
  if (trajectory.finish) facts.push(trajectory.finish === "length" ? "cut at the length limit" : "ended by itself");
  if (trajectory.verify_seconds !== null) facts.push(`verified in ${(1000 * trajectory.verify_seconds).toFixed(1)} ms`);
  const head = element(
    "div",
    { className: "head" },
    element("b", { textContent: trajectory.trajectory_id }),
    element("em", { className: `badge ${judged ?? ""}`, textContent: outcome.replace("_", " ") }),
    ...facts.map((fact) => element("span", { textContent: fact })),
  );
  const told = trajectory.branch_of === null || own === null ? trajectory : own;
  const why = [told.extracted === null ? null : `answer: ${told.extracted}`, told.detail].filter(Boolean);
  const isUnknown = trajectory.trained_step === null && trajectory.num_tokens > 0 && !trajectory.compacted;
  const unknown = "importance ratio and entropy of its tokens were not kept (view.groups_per_step), or it was not trained yet";
  return element(
    "article",
    { className: continues === undefined ? "" : "continued", dataset: { outcome: continues ?? judged ?? "none", ...(continues === undefined ? {} : { continues }) } },
    head,
    ...(why.length ? [element("div", { className: "why", textContent: why.join(" · ") })] : []),
    element("div", {}, ...responseText(trajectory)),
    ...(isUnknown ? [element("div", { className: "unknown muted", textContent: unknown, hidden: true })] : []),
    segmentChips(trajectory),
  );
}

function coloringTools(group) {
  const hasTeacher = group.trajectories.some((each) => each.segments.some(({ tokens }) => tokens.some((token) => isNumber(token[6]))));
  if (state.coloring === "teacher" && !hasTeacher) state.coloring = "version";
  const choice = (value, text) => {
    const input = element("input", { type: "radio", name: "coloring", value, checked: state.coloring === value });
    input.addEventListener("change", () => {
      state.coloring = value;
      colorTokens();
    });
    return element("label", {}, input, ` ${text}`);
  };
  const outcome = choices("outcome", "correct", "wrong", "no_answer", "fault");
  outcome.value = state.outcome;
  outcome.addEventListener("change", () => {
    state.outcome = outcome.value;
    showOutcome();
  });
  const there = Object.entries(COLORINGS).filter(([value]) => value !== "teacher" || hasTeacher);
  const radios = there.map(([value, { title }]) => choice(value, title));
  return [element("div", { className: "tools" }, "Color:", ...radios, outcome), element("ul", { id: "legend" })];
}

// Marks a searched text in the responses of the group that is shown, and goes to the first place.
function markFound(text) {
  let first = null;
  for (const pre of document.querySelectorAll("#group article pre")) {
    const spans = [...pre.querySelectorAll(".token")];
    let all = "";
    const starts = spans.map((span) => {
      const start = all.length;
      all += known.get(span).text;
      return start;
    });
    const found = all.toLowerCase().indexOf(text.toLowerCase());
    if (found === -1) continue;
    spans.forEach((span, index) => {
      const end = starts[index] + known.get(span).text.length;
      const isIn = end > found && starts[index] < found + text.length;
      span.classList.toggle("found", isIn);
      if (isIn) first ??= span;
    });
  }
  for (const block of document.querySelectorAll("#group .observed")) {
    const isIn = block.textContent.toLowerCase().includes(text.toLowerCase());
    block.classList.toggle("found", isIn);
    if (isIn) first ??= block;
  }
  first?.scrollIntoView({ block: "center" });
}

// Where it was used, or why it was not, with links to what else was there.
function story(group) {
  const parts = [group.state === "trained" ? "trained at step " : fate(group)];
  if (group.state === "trained") parts.push(element("a", { href: link(state.run, "groups", { step: group.step }), textContent: group.step }));
  for (const step of group.repeated_steps) parts.push(", again at step ", element("a", { href: link(state.run, "groups", { repeated: step }), textContent: step }));
  parts.push(`, admitted at version ${group.admitted_version} · `);
  parts.push(element("a", { href: link(state.run, "groups", { task: group.task_id }), textContent: "all groups of this task" }));
  return element("p", { className: "fate" }, ...parts);
}

function groupView(group) {
  const title = element("h2", { textContent: `Group ${group.group_id} · ${group.task_id}` });
  const prompt = element("pre", { className: "prompt", textContent: group.prompt });
  return [title, story(group), prompt, ...coloringTools(group), ...trajectoryCards(group.trajectories)];
}

async function reload() {
  const turn = currentTurn();
  const groups = await askGroups(filter());
  if (turn !== currentTurn()) return;
  state.groups = groups;
  renderList();
}

async function older() {
  if (state.search !== null) return searchOn();
  const last = state.groups[state.groups.length - 1].group_id;
  const more = await askGroups({ ...filter(), before: last });
  state.groups = [...state.groups, ...more];
  renderList();
  if (more.length === 0) byId("more").hidden = true;
}

async function showGroup(id) {
  const isNew = state.chosen !== id;
  state.chosen = id;
  markChosen();
  const group = await ask(api(state.run, "groups", id));
  // A late answer to an earlier click, or nothing new: leave the page and what is selected on it alone.
  if (state.chosen !== id || !byId("group") || (!isNew && group === state.shown)) return;
  state.shown = group;
  state.hasEnded = ["trained", "dropped"].includes(group.state);
  const advantages = group.trajectories.flatMap((each) => [each.advantage, ...each.segments.flatMap((segment) => segment.tokens.map((token) => token[5]))]);
  state.largest = advantages.filter(isNumber).reduce((most, each) => Math.max(most, Math.abs(each)), 0);
  byId("group").replaceChildren(...groupView(group));
  if (isNew) byId("group").scrollTop = 0;
  colorTokens();
  showOutcome();
  if (isNew && state.search !== null) markFound(state.search.text);
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
    element("input", { name: "step", type: "number", min: 1, placeholder: "step", "aria-label": "step" }),
    element("input", { name: "text", type: "search", placeholder: "search in text, Enter", "aria-label": "search in text", maxLength: 200 }),
  );
  const titles = ["group", "fate", "outcomes", "reward", "tokens", "by"].map((title) => element("th", { textContent: title }));
  const more = element("button", { id: "more", hidden: true, textContent: "Older groups" });
  filters.addEventListener("input", (event) => {
    if (event.target.name !== "text") reload();
    else if (event.target.value === "") searchText("");
  });
  filters.addEventListener("submit", (event) => event.preventDefault());
  // Of a form with several fields and no button, Enter submits nothing.
  filters.elements.text.addEventListener("keydown", (event) => {
    if (event.key === "Enter") searchText(filters.elements.text.value.trim()).catch(complain);
  });
  more.addEventListener("click", older);
  return element(
    "div",
    { id: "list" },
    filters,
    element("div", { id: "chips" }),
    element("table", {}, element("thead", {}, element("tr", {}, ...titles)), element("tbody", { id: "groups" })),
    element("p", { id: "empty", hidden: true, textContent: "No group matches." }),
    more,
  );
}

// A link of another view: it alone says what is listed.
function askFor(query) {
  const { elements } = byId("filters");
  for (const name of ["state", "outcome", "step", "text"]) elements[name].value = query.get(name) ?? "";
  state.asked = Object.fromEntries(Object.keys(CHIPS).filter((name) => query.has(name)).map((name) => [name, query.get(name)]));
  state.search = null;
  renderChips();
}

views.groups = {
  title: "Groups",
  async show(root, run, rest) {
    if (!root.firstChild) {
      Object.assign(state, { run, groups: [], chosen: null, shown: null, asked: {}, search: null, outcome: "" });
      const hint = "Choose a group to see its prompt, its responses token by token, and their fate.";
      root.append(listPane(), element("div", { id: "group" }, element("p", { className: "hint", textContent: hint })));
    }
    if (rest.query.size > 0) askFor(rest.query);
    if (state.groups.length === 0 || rest.query.size > 0) await reload();
    if (rest.path.length > 0) await showGroup(Number(rest.path[0]));
  },
  async update() {
    // While older pages are open the list stands still: a list that moves cannot be read.
    if (state.search === null && state.groups.length <= PAGE_SIZE && byId("list").scrollTop === 0) await reload();
    // Of a group that has ended nothing but the number of its uses changes.
    if (state.chosen !== null && !state.hasEnded) await showGroup(state.chosen);
  },
};
