"use strict";
// One page, two sources: an exported document carries its answers, a served one asks the local server and follows
// the runs. Owns the route, the tabs, the keyboard, dark and light, and when views update. A view registers
//   views.NAME = { title, async show(root, run, rest), async update() }
// with `run` a name, or null outside of one, and `rest` = { path: [what follows the view's name], query }. `root`
// is empty when the run or the view has changed; where only `rest` has, it holds what `show` left there.
// Model output reaches the document through textContent only.

const UPDATE_MILLISECONDS = 2000;
const RUN_TABS = ["curves", "groups", "answers", "evaluations", "ledger", "servers", "faults", "log"];
const PAGE_TABS = ["overview", "compare", "chains"];
const KEYS = [
  ["j / k", "next, previous row"],
  ["Enter", "open the row"],
  ["[ / ]", "previous, next tab"],
  ["/", "search"],
  ["d", "dark or light"],
  ["Esc", "back"],
  ["?", "these keys"],
];
const MOST_ANSWERS = 8;
// Without a prototype: an address may say "constructor".
const views = Object.create(null);
const byId = (id) => document.getElementById(id);
const embedded = JSON.parse(byId("data").textContent);
const isExported = embedded !== null;

// The last answers by their path, { tag, answer }: the server says where one of them still holds.
const answers = new Map();

// An answer as JSON, the same object as before where nothing has changed: callers must not change it. Throws an
// Error whose message is the server's sentence.
async function ask(path) {
  if (isExported) {
    // Names of runs are written as they are there; a query has "+" for a space.
    const plain = decodeURIComponent(path.replaceAll("+", "%20"));
    if (!Object.hasOwn(embedded, plain)) throw new Error("This exported page does not hold that.");
    if (embedded[plain]?.refused !== undefined) throw new Error(embedded[plain].refused);
    return structuredClone(embedded[plain]);
  }
  const known = answers.get(path);
  const reply = await fetch(path, { headers: known ? { "If-None-Match": known.tag } : {} });
  if (reply.status === 304) return known.answer;
  if (!reply.ok) throw new Error(await reply.text());
  const answer = await reply.json();
  // The newest is the last one.
  answers.delete(path);
  answers.set(path, { tag: reply.headers.get("ETag"), answer });
  if (answers.size > MOST_ANSWERS) answers.delete(answers.keys().next().value);
  return answer;
}

// The path of a run's answers: api("sums", "groups", 3) is /api/runs/sums/groups/3.
const api = (run, ...parts) => ["/api/runs", ...[run, ...parts].map(encodeURIComponent)].join("/");
// A link within the page: link("sums", "groups", { step: 3 }) is #/sums/groups?step=3.
function link(...parts) {
  const query = typeof parts.at(-1) === "object" ? `?${new URLSearchParams(parts.pop())}` : "";
  return `#/${parts.map(encodeURIComponent).join("/")}${query}`;
}

function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key === "dataset" || key === "style") Object.assign(made[key], value);
    else if (key.startsWith("aria-") || key === "role") made.setAttribute(key, value);
    else made[key] = value;
  }
  made.append(...children);
  return made;
}

// A table that the server made: a header and rows of words.
function tableOf({ header, rows }) {
  const head = element("tr", {}, ...header.map((text) => element("th", { textContent: text })));
  const lines = rows.map((row) => element("tr", {}, ...row.map((text, index) => element(index ? "td" : "th", { textContent: text }))));
  return element("div", { className: "wide" }, element("table", {}, element("thead", {}, head), element("tbody", {}, ...lines)));
}

// Numbers

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
// Two decimals; a whole number only where it is one: 0.99999 is "0.99".
function number(value) {
  if (!isNumber(value)) return "–";
  const rounded = Number(fixed(value, 2));
  const isWrong = Number.isInteger(rounded) && rounded !== value;
  return (isWrong ? rounded + Math.sign(value - rounded) / 100 : rounded).toFixed(2);
}
const thousands = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const whole = (value) => (isNumber(value) ? thousands.format(Math.round(value)) : "–");
// Half goes away from zero, as on the terminal (asyncrl/system/words.py), also where a float holds a little less.
function fixed(value, digits = 0) {
  const scaled = Math.abs(value) * 10 ** digits;
  const whole = Math.floor(scaled + 0.5 + 1e-9);
  return `${value < 0 && whole > 0 ? "-" : ""}${(whole / 10 ** digits).toFixed(digits)}`;
}
const percent = (value, digits = 0) => (isNumber(value) ? `${fixed(100 * value, digits)}%` : "–");
// Three significant digits, small and large ones as 2.1e-7 and 12.3k.
function short(value) {
  if (!isNumber(value)) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size < 1e-3) return value.toExponential(1);
  for (const [unit, letter] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (size >= unit) return `${+(value / (letter === "k" ? 1e3 : unit)).toPrecision(3)}${letter}`;
  }
  return String(+value.toPrecision(3));
}
function duration(seconds) {
  if (!isNumber(seconds)) return "–";
  for (const [unit, letter] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= 2 * unit) return `${Math.floor(seconds / unit)} ${letter}`;
  }
  return `${Math.max(0, Math.floor(seconds))} s`;
}
// Of a cause, which may go on with the last lines of a log.
const firstLine = (text) => text.split("\n", 1)[0];
// trainer.num_steps may have been lowered since.
const stepsOf = (step, total) => (total && step <= total ? `${step} of ${total}` : String(step));
const plural = (count, noun) => `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;

// The route

const shown = { run: null, view: null, head: null, revision: null, number: 0, hasChains: false };

// What is no percent escape stands for itself: anybody may type an address.
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch (error) {
    if (error instanceof URIError) return part;
    throw error;
  }
}

function route() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").filter(Boolean).map(decoded);
  const rest = (from) => ({ path: parts.slice(from), query: new URLSearchParams(query ?? "") });
  if (parts.length === 0) return { run: null, view: "overview", rest: rest(0) };
  if (parts.length === 1 && parts[0] in views && PAGE_TABS.includes(parts[0])) return { run: null, view: parts[0], rest: rest(1) };
  const first = RUN_TABS.find((name) => name in views);
  return { run: parts[0], view: parts[1] ?? first, rest: rest(2) };
}

function complain(error) {
  byId("problem").hidden = error === null;
  byId("problem").textContent = error === null ? "" : error.message.replace("Failed to fetch", "The server does not answer.");
}

async function navigate() {
  const { run, view, rest } = route();
  // Answers to an earlier address must not be shown below a later one.
  const turn = (shown.number += 1);
  const isOther = run !== shown.run || view !== shown.view;
  if (isOther) {
    if (run !== shown.run) shown.head = null;
    Object.assign(shown, { run, view });
    byId("root").replaceChildren();
    byId("root").className = view;
    byId("tip").hidden = true;
    window.scrollTo(0, 0);
  }
  renderTabs();
  renderHead();
  if (isExported) renderExported();
  if (!(view in views)) return complain(new Error(`There is no view ${view}.`));
  try {
    complain(null);
    await Promise.all([run === null ? null : follow(run), views[view].show(byId("root"), run, rest)]);
  } catch (error) {
    if (turn === shown.number) complain(error);
  }
}

// The tab of chains is there where the page has any.
function noteChains(hasChains) {
  if (hasChains === shown.hasChains) return;
  shown.hasChains = hasChains;
  renderTabs();
}

// Whether an answer that was asked for at `turn = currentTurn()` still belongs to what is shown.
const currentTurn = () => shown.number;

function renderTabs() {
  const tab = (name, address) =>
    element("a", { href: address, textContent: views[name].title, ...(name === shown.view ? { "aria-current": "page" } : {}) });
  const hasMore = { compare: !isExported || embedded["/api/runs"].runs.length > 1, chains: shown.hasChains || shown.view === "chains" };
  const isThere = (name) => name in views && (hasMore[name] ?? true);
  const names = (shown.run === null ? PAGE_TABS : RUN_TABS).filter(isThere);
  byId("tabs").replaceChildren(...names.map((name) => tab(name, shown.run === null ? (name === "overview" ? "#/" : link(name)) : link(shown.run, name))));
  byId("tabs").hidden = names.length === 0;
}

function renderHead() {
  byId("name").textContent = shown.run ?? "Runs";
  document.title = `${shown.run ?? "runs"} · asyncrl view`;
  const { head } = shown;
  const cause = head === null || head.cause === null ? [] : [element("span", { className: "bad", textContent: firstLine(head.cause), title: head.cause })];
  byId("head").replaceChildren(...(head === null ? [] : headFacts(head).map((text) => element("span", { textContent: text }))), ...cause);
}

function headFacts(head) {
  const facts = head.state === null ? [] : [head.state];
  if (head.step !== null) facts.push(`step ${stepsOf(head.step, head.total_steps)}`);
  if (head.again !== null) facts.push(`steps ${head.again[0]} to ${head.again[1]} are trained again: their earlier rows are superseded`);
  const evaluated = head.accuracies.at(-1);
  if (evaluated) facts.push(`held-out ${percent(evaluated[1])} at step ${evaluated[0]}`);
  return facts;
}

// When an exported document was made, and which part of the view it holds where that is not all.
function renderExported() {
  const { seconds, version } = embedded["/api/exported"];
  const held = embedded[`/api/${shown.run === null ? "" : `runs/${shown.run}/`}${shown.view}/held`];
  const when = new Date(1000 * seconds).toISOString().slice(0, 16).replace("T", " ");
  byId("exported").textContent = `Exported ${when} UTC by asyncrl ${version}.${held === undefined ? "" : ` It holds ${held}.`}`;
  byId("exported").hidden = false;
}

// Updates

// Reads the head of the run. True when the run has written anything since the view was last updated.
async function follow(run) {
  const head = await ask(api(run));
  if (run !== shown.run) return false;
  shown.head = head;
  renderHead();
  const isNew = head.revision !== shown.revision;
  shown.revision = head.revision;
  return isNew;
}

async function update() {
  if (document.hidden || !(shown.view in views)) return;
  const turn = shown.number;
  try {
    if (shown.run === null || (await follow(shown.run))) {
      if (turn === shown.number) await views[shown.view].update();
    }
    if (turn === shown.number) complain(null);
  } catch (error) {
    // The next update reads it again.
    shown.revision = null;
    if (turn === shown.number) complain(error);
  }
}

async function updateForever() {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, UPDATE_MILLISECONDS));
    await update();
  }
}

// The keyboard

function back() {
  const { run, view, rest } = route();
  if (rest.path.length > 0 || rest.query.size > 0) location.hash = run === null ? `/${view}` : link(run, view);
  else location.hash = "/";
}

// Rows carry data-row; the one with the focus is the chosen one.
function moveRow(by) {
  const rows = [...document.querySelectorAll("[data-row]")].filter((row) => row.offsetParent !== null);
  if (rows.length === 0) return;
  const at = rows.indexOf(document.activeElement);
  const next = rows[at === -1 ? (by > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, at + by))];
  next.focus();
  next.scrollIntoView({ block: "nearest" });
}

// What each row was made of, as JSON.
const sources = new WeakMap();

// Shows a row per item in `parent`, make(item). Of an item that was there the row stays as it is, with what is
// selected in it. A row with the focus hands it on to the one with the same data.
function replaceRows(parent, items, make) {
  const data = (row) => JSON.stringify({ ...row.dataset });
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  const there = new Map([...parent.children].map((row) => [sources.get(row), row]));
  const rows = items.map((item) => {
    const source = JSON.stringify(item);
    const row = there.get(source) ?? make(item);
    // An equal item gets a row of its own.
    there.delete(source);
    sources.set(row, source);
    return row;
  });
  const kept = new Set(rows);
  const gone = [...parent.children].filter((row) => !kept.has(row));
  if (gone.length === parent.children.length) parent.replaceChildren();
  else gone.forEach((row) => row.remove());
  let next = parent.firstElementChild;
  for (const row of rows) {
    if (row === next) next = next.nextElementSibling;
    else parent.insertBefore(row, next);
  }
  if (focused !== null && focused !== document.activeElement) rows.find((row) => data(row) === data(focused))?.focus({ preventScroll: true });
}

// A click on the row, or Enter, goes to the address; not where a link is, nor at the end of a selection.
function opens(address, row) {
  row.addEventListener("click", (event) => {
    if (!event.target.closest("a, button") && String(getSelection()) === "") location.hash = address;
  });
  return row;
}

function moveTab(by) {
  const tabs = [...byId("tabs").children];
  const at = tabs.findIndex((tab) => tab.getAttribute("aria-current") === "page");
  const next = tabs[(at + by + tabs.length) % tabs.length];
  if (next) location.hash = next.getAttribute("href");
}

function search() {
  const field = document.querySelector("main [data-search], main input[type=search]");
  if (field) field.focus();
  return Boolean(field);
}

function showHelp() {
  const rows = KEYS.map(([keys, text]) => element("tr", {}, element("th", { textContent: keys }), element("td", { textContent: text })));
  byId("help").replaceChildren(element("h2", { textContent: "Keys" }), element("table", {}, ...rows));
  if (!byId("help").open) byId("help").showModal();
}

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
  const isTyping = event.target.matches("input:not([type=checkbox], [type=radio]), textarea, select");
  if (event.key === "Escape") return isTyping ? event.target.blur() : back();
  if (isTyping) return;
  const done = {
    j: () => moveRow(1),
    k: () => moveRow(-1),
    Enter: () => document.activeElement?.dataset?.row !== undefined && document.activeElement.click(),
    "[": () => moveTab(-1),
    "]": () => moveTab(1),
    "/": search,
    d: switchTheme,
    "?": showHelp,
  }[event.key];
  // Enter follows links and presses buttons by itself.
  if (done === undefined || (event.key === "Enter" && event.target.dataset?.row === undefined)) return;
  if (done() !== false) event.preventDefault();
}

// Dark and light

// A document from a file may be refused a store: it then forgets the choice.
function stored(write) {
  try {
    if (write !== undefined) localStorage.setItem("theme", write);
    return localStorage.getItem("theme");
  } catch (error) {
    if (error.name === "SecurityError") return null;
    throw error;
  }
}

const isDark = () => (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

function setTheme(theme) {
  if (theme === null) delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  // Canvases draw with the colours of the moment.
  document.dispatchEvent(new Event("theme"));
}

function switchTheme() {
  setTheme(stored(isDark() ? "light" : "dark") ?? (isDark() ? "light" : "dark"));
}

// Shows the tip next to what the pointer is on: any element with data-tip.
function showTip(event) {
  const target = event.target.closest?.("[data-tip]");
  const tip = byId("tip");
  tip.hidden = !target;
  if (!target) return;
  tip.textContent = target.dataset.tip;
  const place = target.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(place.left, window.innerWidth - tip.offsetWidth - 10))}px`;
  tip.style.top = `${place.bottom + tip.offsetHeight + 10 > window.innerHeight ? place.top - tip.offsetHeight - 6 : place.bottom + 6}px`;
}

function start() {
  setTheme(stored());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new Event("theme")));
  byId("theme").addEventListener("click", switchTheme);
  byId("help-button").addEventListener("click", showHelp);
  document.addEventListener("keydown", pressed);
  document.addEventListener("mouseover", showTip);
  window.addEventListener("hashchange", navigate);
  // An exported document holds one run: it opens on it.
  if (isExported && route().view === "overview" && embedded["/api/runs"].runs.length === 1) location.replace(link(embedded["/api/runs"].runs[0].name));
  else navigate();
  if (!isExported) updateForever();
}
