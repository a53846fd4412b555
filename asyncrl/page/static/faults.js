// Verifier faults by cause, each with its first traceback.

const state = { run: null, shown: "" };

function causeCard(cause) {
  const id = cause.trajectory_id;
  const where = id === null ? link(state.run, "groups", { outcome: "fault" }) : link(state.run, "groups", Number(id.split("-")[0]));
  return element(
    "article",
    { className: "cause", tabIndex: 0, dataset: { row: cause.cause } },
    element(
      "div",
      { className: "line" },
      element("b", { className: "bad", textContent: cause.cause }),
      element("span", { className: "muted", textContent: plural(cause.num_verdicts, "verdict") }),
      element("a", { href: where, textContent: `first on ${cause.task_id}` }),
    ),
    element("p", { textContent: cause.detail }),
    ...(cause.trace === null ? [] : [element("pre", { className: "trace", textContent: cause.trace })]),
  );
}

async function load() {
  const causes = await ask(api(state.run, "faults"));
  const content = JSON.stringify(causes);
  // What somebody selects on the page stays selected while nothing changes.
  if (content === state.shown) return;
  state.shown = content;
  const none = element("p", { className: "hint", textContent: "No verdict has failed." });
  byId("causes").replaceChildren(...(causes.length ? causes.map(causeCard) : [none]));
}

views.faults = {
  title: "Faults",
  async show(root, run) {
    Object.assign(state, { run, shown: "" });
    const words = "A fault is no wrong answer: the verifier failed, so the trajectory has no score and leaves its group.";
    root.replaceChildren(element("p", { className: "hint", textContent: words }), element("section", { id: "causes" }));
    await load();
  },
  update: load,
};
