// What the run told people: alarms, warnings and restarts, the latest first.

const state = { run: null, shown: null, entries: [], filter: "" };

const moment = (seconds) => new Date(1000 * seconds).toISOString().replace("T", " ").slice(0, 19);

function entries(log) {
  const warnings = log.warnings.map((each) => ({
    kind: "warning",
    seconds: each.last_seconds,
    step: each.first_step === each.last_step ? String(each.last_step) : `${each.first_step}–${each.last_step}`,
    count: each.count,
    text: each.text,
  }));
  const alarms = log.alarms.map((each) => ({ kind: "alarm", seconds: each.time_seconds, step: String(each.step), count: 1, text: `${each.alarm}: ${each.text}`, atStep: each.step }));
  const starts = log.starts.map((each) => ({ kind: "resumed", seconds: each.time_seconds, step: String(each.version), count: 1, text: `resumed from version ${each.version}` }));
  return [...warnings, ...alarms, ...starts].sort((a, b) => b.seconds - a.seconds);
}

function entryRow(entry) {
  const step = entry.atStep ? element("a", { href: link(state.run, "groups", { step: entry.atStep }), textContent: entry.step }) : entry.step;
  const row = element(
    "tr",
    { dataset: { row: `${entry.kind} ${entry.text} ${entry.atStep ?? ""}` }, tabIndex: 0 },
    element("td", { className: "muted", textContent: moment(entry.seconds) }),
    element("td", { className: "number" }, step),
    element("td", {}, element("span", { className: `chip ${entry.kind}`, textContent: entry.kind })),
    element("td", { className: "number", textContent: entry.count > 1 ? `${whole(entry.count)}×` : "" }),
    element("td", { className: "text", textContent: entry.text }),
  );
  return entry.atStep ? opens(link(state.run, "groups", { step: entry.atStep }), row) : row;
}

function render() {
  const wanted = state.filter.toLowerCase();
  const found = state.entries.filter((entry) => `${entry.kind} ${entry.text}`.toLowerCase().includes(wanted));
  replaceRows(byId("log-rows"), found, entryRow);
  byId("log-empty").hidden = found.length > 0;
}

async function load() {
  const found = await ask(api(state.run, "log"));
  if (found === state.shown) return;
  Object.assign(state, { shown: found, entries: entries(found) });
  render();
}

views.log = {
  title: "Log",
  async show(root, run) {
    Object.assign(state, { run, shown: null, entries: [], filter: "" });
    const field = element("input", { type: "search", placeholder: "search", "aria-label": "search in the log" });
    field.addEventListener("input", () => {
      state.filter = field.value;
      render();
    });
    const titles = ["time (UTC)", "step", "", "", "text"].map((textContent) => element("th", { textContent }));
    root.replaceChildren(
      field,
      element("table", { className: "wide" }, element("thead", {}, element("tr", {}, ...titles)), element("tbody", { id: "log-rows" })),
      element("p", { id: "log-empty", className: "hint", textContent: "Nothing was told.", hidden: true }),
    );
    await load();
  },
  update: load,
};
