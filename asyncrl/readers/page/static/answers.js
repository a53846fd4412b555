// Tasks that were asked more than once and whose answers changed, the most changeable first.

const PAGE = 25;
const state = { run: null, tasks: [] };

// `unread` stands for an answer that the verifier did not read.
function visitLink(visit, before, unread) {
  const isOther = before !== undefined && before.answer !== visit.answer;
  const step = visit.step === null ? `v${visit.admitted_version}` : `step ${visit.step}`;
  const bar = element("i", { className: "share" }, element("i"));
  bar.firstChild.style.height = `${100 * visit.correct}%`;
  const answer = visit.answer ?? unread;
  const fate = visit.state === "dropped" ? "dropped" : visit.step === null ? "not trained yet" : `trained at step ${visit.step}`;
  return element(
    "a",
    {
      className: `visit ${isOther ? "other" : ""}`,
      href: link(state.run, "groups", visit.group_id),
      dataset: { tip: `${percent(visit.correct)} correct of ${visit.num_graded}\n${whole(visit.num_same)} answered ${answer}\nadmitted at version ${visit.admitted_version}, ${fate}` },
    },
    bar,
    element("b", { textContent: answer.length > 24 ? `${answer.slice(0, 23)}…` : answer }),
    element("span", { textContent: step }),
  );
}

function taskCard(task) {
  const first = task.visits[0].correct;
  const last = task.visits.at(-1).correct;
  // A verifier that never names an answer does not read any.
  const unread = task.visits.every((visit) => visit.answer === null) ? "–" : "no answer";
  const trend = last > first ? "good" : last < first ? "bad" : "muted";
  const card = element(
    "article",
    { className: "task", tabIndex: 0, dataset: { row: task.task_id } },
    element(
      "div",
      { className: "line" },
      element("b", { textContent: task.task_id }),
      element("span", { className: trend, textContent: `${percent(first)} → ${percent(last)} correct` }),
      element("span", { className: "muted", textContent: `${plural(task.num_changes, "change")} of the answer in ${plural(task.num_visits, "visit")}` }),
      element("a", { href: link(state.run, "groups", { task: task.task_id }), textContent: "groups" }),
    ),
    element("p", { className: "question muted", textContent: task.prompt }),
    element("div", { className: "visits" }, ...task.visits.map((visit, index) => visitLink(visit, task.visits[index - 1], unread))),
  );
  return opens(link(state.run, "groups", { task: task.task_id }), card);
}

function render() {
  replaceRows(byId("tasks"), state.tasks, taskCard);
  byId("answers-empty").hidden = state.tasks.length > 0;
  byId("answers-more").hidden = isExported || state.tasks.length === 0 || state.tasks.length % PAGE !== 0;
}

async function load() {
  const found = await ask(api(state.run, "answers"));
  // While older pages are open the list stands still: a list that moves cannot be read.
  if (found === state.tasks || state.tasks.length > PAGE) return;
  state.tasks = found;
  render();
}

async function more() {
  const found = await ask(`${api(state.run, "answers")}?offset=${state.tasks.length}`);
  state.tasks = [...state.tasks, ...found];
  render();
  if (found.length < PAGE) byId("answers-more").hidden = true;
}

views.answers = {
  title: "Answers",
  async show(root, run) {
    Object.assign(state, { run, tasks: [] });
    const button = element("button", { id: "answers-more", textContent: "More tasks", hidden: true });
    button.addEventListener("click", more);
    const words = "Each visit of a task is a group: the bar is its share of correct responses, the text the answer that most of them gave. Outlined: another answer than before.";
    const none = element("p", { id: "answers-empty", className: "hint", hidden: true, textContent: "No task was asked twice with another outcome yet." });
    root.replaceChildren(element("p", { className: "hint", textContent: words }), element("section", { id: "tasks" }), none, button);
    await load();
  },
  update: load,
};
