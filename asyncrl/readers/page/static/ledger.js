// The ledger: the fate of every token, then of the groups of each step.

const PAGE = 50;
const state = { run: null, rows: [], isAtEnd: false };
const colors = { trained: "var(--good)", taken: "var(--accent)", queued: "var(--muted)" };
const fateColor = (name) => colors[name] ?? "var(--bad)";

function stack(books) {
  const parts = books.fates.filter((fate) => fate.tokens > 0).map((fate) => {
    const part = element("i", { dataset: { tip: `${fate.name}: ${whole(fate.tokens)} tokens, ${percent(fate.share, 1)}` } });
    part.style.width = `${100 * fate.share}%`;
    part.style.background = fateColor(fate.name);
    return part;
  });
  return element("div", { className: "stack" }, ...parts);
}

// The groups that a fate names.
function fateLink(fate) {
  // Without a verdict a trajectory leaves; its group may be trained all the same.
  if (fate.name === "dropped: fault") return link(state.run, "groups", { outcome: "fault" });
  if (fate.name.startsWith("dropped: ")) return link(state.run, "groups", { state: "dropped", reason: fate.name.slice(9) });
  return fate.name === "queued" ? link(state.run, "groups") : link(state.run, "groups", { state: fate.name });
}

function conservation(books) {
  const row = (sign, name, tokens, groups, share, className = "") =>
    element(
      "tr",
      { className },
      element("th", {}, sign, name),
      element("td", { className: "number", textContent: whole(tokens) }),
      element("td", { className: "number", textContent: groups }),
      element("td", { className: "number", textContent: share }),
    );
  const rows = books.fates.map((fate, index) =>
    row(index ? "+ " : "= ", element("a", { href: fateLink(fate), textContent: fate.name }), fate.tokens, whole(fate.groups), percent(fate.share, 1)),
  );
  if (books.missing_tokens) rows.push(row("! ", "unaccounted", books.missing_tokens, "", "", "bad"));
  const head = ["", "tokens", "groups", "share"].map((title, index) => element("th", { className: index ? "number" : "", textContent: title }));
  const words = books.missing_tokens ? "The books do not balance: this is a defect." : "Every generated token is accounted for.";
  const again = books.repeated_tokens ? ` Of the trained ones ${whole(books.repeated_tokens)} were trained again.` : "";
  return [
    element("h2", { textContent: "Tokens" }),
    stack(books),
    element(
      "table",
      { id: "conservation" },
      element("thead", {}, element("tr", {}, ...head)),
      element("tbody", {}, row("", "generated", books.generated_tokens, whole(books.generated_groups), "", "total"), ...rows),
    ),
    element("p", { className: "hint", textContent: words + again }),
  ];
}

function count(value, query, className = "number") {
  if (!value) return element("td", { className: "number muted", textContent: "·" });
  return element("td", { className }, element("a", { href: link(state.run, "groups", query), textContent: whole(value) }));
}

function stepRow(row) {
  const admitted = { admitted: row.version };
  const dropped = Object.entries(row.dropped).map(([reason, groups]) =>
    element("a", { className: "chip", href: link(state.run, "groups", { ...admitted, state: "dropped", reason }), textContent: `${reason} ${whole(groups)}` }),
  );
  const made = element(
    "tr",
    { dataset: { row: row.step }, tabIndex: 0 },
    element("th", {}, element("a", { href: link(state.run, "groups", { step: row.step }), textContent: row.step })),
    count(row.trained, { step: row.step, state: "trained" }),
    count(row.taken, { step: row.step, state: "taken" }),
    count(row.repeated, { repeated: row.step }),
    count(row.admitted, admitted),
    count(row.open, { ...admitted, state: "open" }),
    count(row.ready, { ...admitted, state: "ready" }),
    element("td", {}, ...(dropped.length ? dropped : [element("span", { className: "muted", textContent: "·" })])),
  );
  return opens(link(state.run, "groups", { step: row.step }), made);
}

function renderRows() {
  replaceRows(byId("ledger-rows"), state.rows, stepRow);
  byId("ledger-more").hidden = state.isAtEnd;
}

async function loadFirst() {
  const [rows, books] = await Promise.all([ask(api(state.run, "ledger")), ask(api(state.run, "conservation"))]);
  const older = rows.length ? state.rows.filter((row) => row.step < rows.at(-1).step) : [];
  state.rows = [...rows, ...older];
  state.isAtEnd = state.rows.length === 0 || state.rows.at(-1).step <= 1 || isExported;
  byId("books").replaceChildren(...conservation(books));
  renderRows();
}

async function loadOlder() {
  const rows = await ask(`${api(state.run, "ledger")}?before=${state.rows.at(-1).step}`);
  state.rows.push(...rows);
  state.isAtEnd = rows.length < PAGE;
  renderRows();
}

views.ledger = {
  title: "Ledger",
  async show(root, run) {
    Object.assign(state, { run, rows: [], isAtEnd: true });
    const heads = [
      ["step", "", ""],
      ["trained", "number", "groups that the step trained for the first time; a checkpoint holds it"],
      ["taken", "number", "groups of a step that no checkpoint holds yet"],
      ["repeated", "number", "groups that the step trained again"],
      ["admitted", "number", "groups admitted at the version that the step trains: those that it could have trained first"],
      ["in flight", "number", "of the admitted: generated, verified, or parked until a server has room"],
      ["waiting", "number", "of the admitted: ready, and not taken yet"],
      ["dropped", "", "of the admitted, by reason"],
    ];
    const titles = heads.map(([textContent, className, tip]) => element("th", { textContent, className, dataset: tip ? { tip } : {} }));
    const more = element("button", { id: "ledger-more", textContent: "Older steps", hidden: true });
    more.addEventListener("click", loadOlder);
    root.replaceChildren(
      element("section", { id: "books" }),
      element("h2", { textContent: "Groups by step" }),
      element("div", { className: "scroll" }, element("table", {}, element("thead", {}, element("tr", {}, ...titles)), element("tbody", { id: "ledger-rows" }))),
      more,
    );
    await loadFirst();
  },
  update: loadFirst,
};
