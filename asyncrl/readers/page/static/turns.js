// Turns of a trajectory: what was sampled and what was observed, in the order of position. All of it is untrusted text.

// Segments and observations of a trajectory as they follow each other.
function partsOf(trajectory) {
  return [...trajectory.segments, ...trajectory.observations].sort((one, other) => one.position - other.position);
}

const isObserved = (part) => part.turn !== undefined;

function callView(call) {
  const title = call.name === "" ? "a call that could not be read" : `${call.name}(${call.arguments.map(([name, value]) => `${name}=${value}`).join(", ")})`;
  const result = element("pre", { className: call.is_error ? "result bad" : "result", textContent: call.output });
  const failed = call.error !== "" ? "could not be made" : call.is_error ? "failed" : "";
  return element("div", { className: "call" }, element("code", { textContent: title }), ...(failed ? [" ", element("em", { className: "bad", textContent: failed })] : []), result);
}

function messageView(message) {
  return element("div", { className: "call" }, element("span", { className: "muted", textContent: message.role }), element("pre", { className: "result", textContent: message.text }));
}

// The answer to a turn: context of the next one, and never trained.
function observedBlock(observation) {
  const facts = [
    `turn ${observation.turn + 1} ${observation.turn_finish === "length" ? "was cut at the length limit" : "ended by itself"}`,
    `${plural(observation.num_tokens, "token")} observed, not trained`,
  ];
  if (observation.seconds !== null) facts.push(`${Number(observation.seconds.toPrecision(3))} s`);
  if (observation.reward !== null) facts.push(`reward ${number(observation.reward)}`);
  const block = element("div", { className: "observed" }, element("div", { className: "facts" }, ...facts.map((fact) => element("span", { textContent: fact }))));
  block.append(...observation.calls.map(callView), ...observation.messages.map(messageView));
  if (observation.text !== "") {
    const read = element("details", {}, element("summary", { textContent: "as the model reads it" }), element("pre", { textContent: observation.text }));
    read.open = observation.calls.length + observation.messages.length === 0;
    block.append(read);
  }
  return block;
}
