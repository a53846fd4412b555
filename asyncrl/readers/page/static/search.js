// The search of an exported document, which has no server: in prompts, responses, answers, and what calls and environments
// said, the newest groups first. Texts are those that the document holds.

const AROUND = 60;

function excerptOf(text, where) {
  const at = where.toLowerCase().indexOf(text.toLowerCase());
  if (at === -1) return null;
  const end = at + text.length;
  return { before: where.slice(Math.max(0, at - AROUND), at), match: where.slice(at, end), after: where.slice(end, end + AROUND) };
}

const responseOf = (trajectory) => trajectory.segments.flatMap((segment) => segment.tokens.map(([text]) => text)).join("");
const observedOf = ({ text, calls }) => [text, ...calls.flatMap((call) => [call.name, ...call.arguments.flat(), call.output, call.error])];

function hitsOfTrajectory(text, trajectory) {
  const own = excerptOf(text, responseOf(trajectory)) ?? excerptOf(text, trajectory.extracted ?? "");
  const observed = trajectory.observations.flatMap(observedOf).map((where) => excerptOf(text, where)).find(Boolean);
  const { group_id, trajectory_id, sample, outcome } = trajectory;
  const hit = (excerpt, is_observed) => ({ group_id, trajectory_id, sample, outcome, is_observed, ...excerpt });
  return [...(own ? [hit(own, false)] : []), ...(observed ? [hit(observed, true)] : [])];
}

// As the server answers a search: all hits, and that nothing is left.
function searchExported(run, text) {
  const held = (...parts) => embedded[["/api/runs", run, "groups", ...parts].join("/")];
  const hits = held().flatMap(({ group_id }) => {
    const group = held(group_id);
    const asked = excerptOf(text, group.prompt);
    const inPrompt = asked ? [{ group_id, trajectory_id: null, sample: null, outcome: null, is_observed: false, ...asked }] : [];
    const whole = (each) => (each.has_text ? each : (held(group_id, each.trajectory_id.split(".").with(0, each.sample).join(".")) ?? each));
    return [...inPrompt, ...group.trajectories.flatMap((each) => hitsOfTrajectory(text, whole(each)))];
  });
  return { hits, below: 0 };
}
