// Chains of stages, each as one story: a card for each stage, held-out accuracy over all of them, the tables.

const state = { shown: null, charts: [], wanted: null };

const ends = (stage, name) => [stage.before, stage.after].map((row) => (row === null ? null : (row[name] ?? null)));
const range = (row) => (row !== null && isNumber(row.greedy_low) ? ` ${fixed(100 * row.greedy_low)}–${fixed(100 * row.greedy_high)}` : "");

function fact(label, ...children) {
  return element("p", {}, element("span", { className: "muted", textContent: `${label} ` }), ...children);
}

// A share before and after the stage: 32% → 99% 96–100.
function shares(label, stage, name, end = "") {
  const [before, after] = ends(stage, name);
  if (!isNumber(before) && !isNumber(after)) return [];
  return [fact(label, `${percent(before)} → `, element("b", { textContent: percent(after) }), element("span", { className: "muted", textContent: end }))];
}

function bar(stage) {
  const [before, after] = ends(stage, "greedy_accuracy");
  if (!isNumber(before) || !isNumber(after)) return [];
  const was = element("i", { className: "was" });
  const now = element("i", { className: "now" });
  was.style.width = percent(before, 1);
  now.style.width = percent(after, 1);
  return [element("span", { className: "gain", role: "img", "aria-label": `held-out accuracy ${percent(before)}, then ${percent(after)}` }, now, was)];
}

function facts(stage) {
  const [first, last] = ends(stage, "response_tokens_mean");
  const found = [];
  if (stage.began_with !== null) found.push(fact("began with", stage.began_with));
  if (stage.ended_with !== null) found.push(fact("ended with", stage.ended_with));
  found.push(...shares("held-out", stage, "greedy_accuracy", range(stage.after)), ...bar(stage));
  const k = (stage.after ?? stage.before)?.k;
  found.push(...shares(`avg@${k}`, stage, "avg_at_k"), ...shares(`pass@${k}`, stage, "pass_at_k"));
  if (isNumber(first) || isNumber(last)) found.push(fact("tokens", `${short(first)} → ${short(last)}`));
  if (isNumber(stage.heldout_loss_after)) found.push(fact("held-out loss", `${short(stage.heldout_loss_before)} → ${short(stage.heldout_loss_after)}`));
  const chosen = stage.selected;
  if (chosen !== null) found.push(fact("wrote", plural(chosen.lines, "line"), ` of ${whole(chosen.rows)} of ${plural(chosen.rows_seen, "row")}`), fact("generated", plural(chosen.responses_generated, "response")));
  if (isNumber(stage.wall_seconds)) found.push(fact("cost", `${duration(stage.wall_seconds)}${isNumber(stage.cpu_hours) ? `, ${duration(3600 * stage.cpu_hours)} of CPU` : ""}`));
  if (stage.cause !== null) found.push(element("p", { className: "bad", textContent: firstLine(stage.cause), title: stage.cause }));
  return found;
}

function stageCard(stage, run) {
  const title = `${stage.number} ${stage.name}`;
  const name = run === undefined ? element("b", { textContent: title }) : element("a", { href: link(run), textContent: title });
  const steps = stage.state !== "finished" && isNumber(stage.steps) && stage.num_steps ? `, step ${stage.steps} of ${stage.num_steps}` : "";
  const head = element("h3", {}, name, element("span", { className: "kind", textContent: stage.kind }));
  const card = element("li", { dataset: { state: stage.state } }, head, element("p", { textContent: `${stage.state}${steps}` }), ...facts(stage));
  if (run === undefined) return card;
  card.dataset.row = run;
  card.tabIndex = 0;
  return opens(link(run), card);
}

// The steps of each stage follow those of the one before; each is a line of its own.
function accuracyOptions(stages) {
  let begin = 0;
  const spans = stages.map((stage) => {
    const span = { stage, begin };
    begin += stage.steps ?? 0;
    return span;
  });
  const series = spans.filter(({ stage }) => stage.curve.length > 0);
  return {
    title: "Held-out accuracy over the stages",
    x: "step",
    format: percent,
    series: series.map(({ stage, begin: from }) => ({
      name: `${stage.number} ${stage.name}`,
      points: stage.curve.map(([step, value]) => [from + step, value]),
      low: stage.curve.map((point) => point[2]),
      high: stage.curve.map((point) => point[3]),
    })),
  };
}

function table(one) {
  return [element("h3", { textContent: one.title }), tableOf(one), ...(one.note ? [element("p", { className: "hint", textContent: one.note })] : [])];
}

function chainStory(one) {
  const heading = element("h2", {}, one.name, element("span", { className: "muted", textContent: ` ${one.state}` }));
  const made = element("article", { className: "chain", dataset: { chain: one.name } }, heading);
  if (one.problem !== null) {
    made.append(element("p", { className: "bad", textContent: one.problem }));
    return { made, draw: () => [] };
  }
  const { stages, remarks } = one.story;
  const pictures = element("div", { className: "charts" });
  made.append(
    ...remarks.map((text) => element("p", { className: "warn", textContent: text })),
    element("ol", { className: "stages" }, ...stages.map((stage) => stageCard(stage, one.runs[stage.number]))),
    pictures,
    ...one.tables.flatMap(table),
  );
  const isMeasured = stages.some((stage) => stage.curve.length > 0);
  return { made, draw: () => (isMeasured ? [chart(pictures, accuracyOptions(stages))] : []) };
}

async function load() {
  const turn = currentTurn();
  const all = await ask("/api/chains");
  if (turn !== currentTurn() || all === state.shown) return;
  state.charts.forEach((each) => each.remove());
  const found = all.filter((one) => state.wanted === null || one.name === state.wanted).map(chainStory);
  const focused = document.activeElement?.dataset?.row;
  byId("stories").replaceChildren(...found.map(({ made }) => made));
  // A chart is as wide as its place, which it has by now.
  Object.assign(state, { shown: all, charts: found.flatMap(({ draw }) => draw()) });
  if (focused !== undefined) byId("stories").querySelector(`[data-row="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  byId("no-chain").hidden = found.length > 0;
}

views.chains = {
  title: "Chains",
  async show(root, run, rest) {
    state.charts.forEach((each) => each.remove());
    Object.assign(state, { shown: null, charts: [], wanted: rest.query.get("name") });
    const words = "Nothing here: asyncrl chain FILE runs stages one after the other.";
    root.replaceChildren(element("section", { id: "stories" }), element("p", { id: "no-chain", className: "hint", hidden: true, textContent: words }));
    await load();
  },
  update: load,
};
