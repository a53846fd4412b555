// The servers of a run, and what each part waits for.

let current = null;

function card(title, value) {
  return element("div", {}, element("span", { textContent: title }), element("b", { textContent: value }));
}

function busy(share) {
  const fill = element("i");
  fill.style.width = percent(share);
  return element("span", {}, element("span", { className: "bar" }, fill), percent(share));
}

function serverRow(server, isRunning) {
  const cell = (label, value, className = "number") => element("td", { className, dataset: { label } }, value);
  return element(
    "tr",
    {},
    element("td", { textContent: server.url }),
    element("td", { textContent: isRunning ? server.state : "no longer running" }),
    cell("version", server.version === null ? "–" : `v${server.version}`),
    cell("requests", whole(server.requests)),
    cell("tokens/s", whole(server.tokens_per_second)),
    cell("busy", busy(server.busy_share)),
    cell("restarts", String(server.restarts), server.restarts > 0 ? "number warn" : "number"),
    cell("retractions", String(server.retractions)),
  );
}

function table(servers, isRunning) {
  const titles = ["server", "state", "version", "requests", "tokens/s", "busy", "restarts", "retractions"];
  const heads = titles.map((title, index) => element("th", { textContent: title, className: index > 1 ? "number" : "" }));
  const rows = servers.map((server) => serverRow(server, isRunning));
  return element("div", { className: "scroll" }, element("table", {}, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...rows)));
}

function content({ state, cause, is_running: isRunning, age_seconds: age, status }) {
  const { queue, waiting } = status;
  const total = status.servers.reduce((sum, server) => sum + server.tokens_per_second, 0);
  const waits = [["trainer", waiting.trainer], ["rollouts", waiting.rollouts]];
  const wait = ([who, what]) => element("tr", {}, element("th", { textContent: who }), element("td", { textContent: what === null ? "works" : `waits ${what}` }));
  const parts = [
    element(
      "div",
      { className: "cards" },
      card("state", state),
      card("step", stepsOf(status.step, status.total_steps)),
      ...(isRunning ? [card("tokens/s", whole(total))] : []),
      card("groups open", whole(queue.open)),
      card("ready", whole(queue.ready)),
      card("taken", whole(queue.taken)),
      card("tokens in flight", whole(queue.tokens_in_flight)),
    ),
  ];
  if (isRunning) parts.push(element("h3", { textContent: "What each part waits for" }), element("table", { className: "waits" }, element("tbody", {}, ...waits.map(wait))));
  else parts.push(element("p", { className: "hint", textContent: `The run wrote this ${duration(age)} ago; it is ${state}.` }));
  if (cause !== null) parts.push(element("h3", { textContent: "What ended it" }), element("pre", { className: "cause", textContent: cause }));
  parts.push(element("h3", { textContent: "Servers" }));
  parts.push(status.servers.length > 0 ? table(status.servers, isRunning) : element("p", { className: "hint", textContent: "No server has joined." }));
  return parts;
}

async function refresh() {
  const turn = currentTurn();
  const { found } = await ask(api(current, "servers"));
  if (turn !== currentTurn()) return;
  const none = element("p", { className: "hint", textContent: "This run wrote no status.json: which servers it had is in its journal alone (asyncrl journal)." });
  byId("root").replaceChildren(...(found === null ? [none] : content(found)));
}

views.servers = {
  title: "Servers",
  async show(root, run) {
    current = run;
    await refresh();
  },
  update: refresh,
};
