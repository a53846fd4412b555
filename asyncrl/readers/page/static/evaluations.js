// What `asyncrl eval` measured: models side by side, and base and trained over k in one picture.

const TITLES = { pass: "pass@k: one of k samples is correct", maj: "maj@k: most of k samples give the correct answer", best: "best@k: the highest score of k samples" };
const state = { run: null, shown: null, charts: [] };

// A measure over k on a logarithmic axis, a line for each model.
function optionsOf(compared, measure) {
  const lines = compared.curves[measure].map((curve, index) => ({ curve, name: compared.models[index] })).filter(({ curve }) => curve !== null);
  const most = Math.max(...lines.map(({ curve }) => curve.mean.length));
  return {
    title: TITLES[measure],
    x: "k",
    format: percent,
    xTicks: Array.from({ length: Math.floor(Math.log2(most)) + 1 }, (_, power) => power),
    xText: (x) => String(Math.round(2 ** x)),
    series: lines.map(({ curve, name }) => ({ name, points: curve.mean.map((mean, index) => [Math.log2(index + 1), mean]), low: curve.low, high: curve.high })),
  };
}

function card(one) {
  const pictures = element("div", { className: "charts" });
  const { compared } = one;
  const sentences = (compared === null ? [] : compared.sentences).map((text) => element("p", { className: "sentence", textContent: text }));
  const made = element("article", { className: "evaluation", dataset: { row: one.name } }, element("h2", { textContent: one.title }), tableOf(one), ...sentences, pictures);
  return { made, draw: () => Object.keys(compared === null ? {} : compared.curves).map((measure) => chart(pictures, optionsOf(compared, measure))) };
}

async function load() {
  const turn = currentTurn();
  const found = await ask(api(state.run, "evaluations"));
  if (turn !== currentTurn() || found === state.shown) return;
  state.charts.forEach((each) => each.remove());
  const cards = found.map(card);
  byId("measured").replaceChildren(...cards.map(({ made }) => made));
  // A chart is as wide as its place, which it has by now.
  Object.assign(state, { shown: found, charts: cards.flatMap(({ draw }) => draw()) });
  byId("unmeasured").hidden = found.length > 0;
}

views.evaluations = {
  title: "Evaluations",
  async show(root, run) {
    state.charts.forEach((each) => each.remove());
    Object.assign(state, { run, shown: null, charts: [] });
    const words = "What asyncrl eval measured of this run. Bands are 95% intervals over tasks; differences are paired over tasks, in points.";
    const command = "Nothing yet: asyncrl eval RUN heldout --at base,last --k 64 measures the base model and the last checkpoint.";
    root.replaceChildren(element("p", { className: "hint", textContent: words }), element("section", { id: "measured" }), element("p", { id: "unmeasured", className: "hint", hidden: true, textContent: command }));
    await load();
  },
  update: load,
};
