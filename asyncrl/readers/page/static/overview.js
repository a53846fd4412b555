// All runs of the page: a line each.

const RUNNING = ["starting", "evaluating", "training"];
let lines = [];

function stateMark(state) {
  const kind = RUNNING.includes(state) ? "running" : { failed: "failed", finished: "finished", "no longer running": "lost" }[state] ?? "";
  return element("span", { className: `state ${kind}` }, element("i"), state ?? "–");
}

function progress(run) {
  const bar = element("i");
  bar.style.width = percent(Math.min(1, run.step / run.total_steps));
  return element("span", { className: "progress" }, bar);
}

// Held-out accuracy with its interval, 83% 78-87.
function accuracy(run) {
  const last = run.accuracies.at(-1);
  if (!last) return ["–"];
  const interval = isNumber(run.low) ? ` ${fixed(100 * run.low)}–${fixed(100 * run.high)}` : "";
  return [percent(last[1]), element("span", { className: "muted", textContent: interval })];
}

// A name that may break behind its separators, and inside of a word only where the word alone is too wide.
function breakable(name) {
  return name.split(/(?<=[-_./])/).flatMap((part) => [part, element("wbr")]);
}

function runRow(run, now) {
  const cell = (label, className, ...children) => element("td", { className, dataset: { label } }, ...children);
  const name = element("th", {}, element("a", { href: link(run.name), tabIndex: -1 }, ...breakable(run.name)));
  const row = element("tr", { tabIndex: 0, dataset: { row: run.name } }, name);
  if (run.problem !== null) {
    row.append(element("td", { className: "problem", colSpan: 8, textContent: run.problem }));
  } else {
    const end = RUNNING.includes(run.state) ? now : run.written_seconds;
    const alarm = run.alarm === null ? "" : `${run.alarm}${run.alarm_step === null ? "" : ` (step ${run.alarm_step})`}`;
    // Why a run failed matters more than what it was warned of before.
    const last = run.cause === null ? element("td", { className: "alarm", textContent: alarm }) : element("td", { className: "problem", textContent: firstLine(run.cause), title: run.cause });
    row.append(
      element("td", {}, stateMark(run.state)),
      cell("step", "number", run.step === null ? "–" : stepsOf(run.step, run.total_steps), ...(run.step !== null && run.total_steps ? [progress(run)] : [])),
      cell("", "", sparkline(run.accuracies)),
      cell("held-out", "number", ...accuracy(run)),
      cell("reward", "number", number(run.reward)),
      cell("for", "number", run.begun_seconds === null ? "–" : duration(end - run.begun_seconds)),
      cell("last row", "number", run.written_seconds === null ? "–" : `${duration(now - run.written_seconds)} ago`),
      last,
    );
  }
  row.addEventListener("click", () => (location.hash = link(run.name)));
  return row;
}

function render(now) {
  const wanted = byId("wanted").value.toLowerCase();
  const kept = lines.filter((run) => run.name.toLowerCase().includes(wanted));
  const focused = document.activeElement?.dataset?.row;
  byId("runs").replaceChildren(...kept.map((run) => runRow(run, now)));
  // Rows are made again at each update: the keyboard stays where it was.
  if (focused !== undefined) byId("runs").querySelector(`[data-row="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  byId("none").hidden = kept.length > 0;
}

async function refresh() {
  const turn = currentTurn();
  const answer = await ask("/api/runs");
  if (turn !== currentTurn()) return;
  lines = answer.runs;
  noteChains(answer.chains.length > 0);
  byId("chains").replaceChildren(...answer.chains.map((name) => element("a", { href: link("chains", { name }), textContent: `chain ${name}` })));
  byId("chains").hidden = answer.chains.length === 0;
  render(answer.now_seconds);
}

views.overview = {
  title: "Runs",
  async show(root) {
    const wanted = element("input", { id: "wanted", type: "search", placeholder: "name", "aria-label": "name of a run" });
    wanted.addEventListener("input", refresh);
    const titles = ["run", "state", "step", "held-out accuracy", "", "reward", "time", "last row", "last alarm"];
    const heads = titles.map((title, index) => element("th", { textContent: title, className: [2, 5, 6, 7].includes(index) ? "number" : "" }));
    root.replaceChildren(
      element("p", { id: "chains", hidden: true }),
      element("p", {}, wanted),
      element("table", {}, element("thead", {}, element("tr", {}, ...heads)), element("tbody", { id: "runs" })),
      element("p", { id: "none", className: "hint", hidden: true, textContent: "No run of that name." }),
    );
    await refresh();
  },
  update: refresh,
};
