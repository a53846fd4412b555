// Verifier faults by cause, each with its first traceback.

const state = { run: null, shown: null };

function causeCard(cause) {
  const id = cause.trajectory_id;
  const where = id === null ? link(state.run, "groups", { outcome: "fault" }) : link(state.run, "groups", Number(id.split("-")[0]));
  const card = element(
    "article",
    { className: "cause", tabIndex: 0, dataset: { row: cause.cause } },
    element(
      "div",
      { className: "line" },
      element("b", { className: "bad", textContent: cause.cause }),
      element("span", { className: "muted", textContent: `${plural(cause.num_verdicts, "verdict")}, ${cause.num_retried} retried` }),
      element("a", { href: where, textContent: `first on ${cause.task_id}` }),
    ),
    element("p", { textContent: cause.detail }),
    ...(cause.trace === null ? [] : [element("pre", { className: "trace", textContent: cause.trace })]),
  );
  return opens(where, card);
}

async function load() {
  const causes = await ask(api(state.run, "faults"));
  if (causes === state.shown) return;
  state.shown = causes;
  replaceRows(byId("causes"), causes, causeCard);
  byId("faults-empty").hidden = causes.length > 0;
}

views.faults = {
  title: "Faults",
  async show(root, run) {
    Object.assign(state, { run, shown: null });
    const words = "A fault is no wrong answer: the verifier failed, so it is asked again. Retried are those that then gave a verdict; a trajectory without one has no score and leaves its group.";
    root.replaceChildren(element("p", { className: "hint", textContent: words }), element("section", { id: "causes" }), element("p", { id: "faults-empty", className: "hint", hidden: true, textContent: "No verdict has failed, none was retried." }));
    await load();
  },
  update: load,
};
