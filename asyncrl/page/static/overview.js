// All runs of the page.

function runRow(run) {
  const row = element("tr", { tabIndex: 0, dataset: { row: run.name } });
  row.append(
    element("th", {}, element("a", { href: link(run.name), textContent: run.name })),
    element("td", { textContent: run.steps ? String(run.steps[1]) : "–" }),
    element("td", { textContent: percent(run.greedy_accuracy) }),
  );
  row.addEventListener("click", () => (location.hash = link(run.name)));
  return row;
}

async function refresh() {
  const turn = currentTurn();
  const runs = await ask("/api/runs");
  if (turn !== currentTurn()) return;
  byId("runs").replaceChildren(...runs.map(runRow));
}

views.overview = {
  title: "Runs",
  async show(root) {
    const titles = ["run", "step", "held-out"].map((title) => element("th", { textContent: title }));
    root.replaceChildren(element("table", {}, element("thead", {}, element("tr", {}, ...titles)), element("tbody", { id: "runs" })));
    await refresh();
  },
  update: refresh,
};
