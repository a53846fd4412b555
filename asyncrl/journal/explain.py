"""Why a group or a trajectory was trained or dropped, in plain sentences from the journal, with its turns."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from asyncrl.journal.conservation import Conservation
from asyncrl.journal.reader import JournalReader
from asyncrl.journal.rows import (
    CallRow,
    GroupRow,
    ObservationRow,
    SegmentRow,
    StreamRow,
    TrajectoryRow,
    as_text,
)
from asyncrl.records import DropReason
from asyncrl.system.words import as_percent

LONGEST_TEXT = 80
"""Characters of an argument, a result or a message that a sentence shows."""
_ENDS = {"stop": "ended by itself", "length": "cut at the length limit"}


def turn_sentences(trajectory: TrajectoryRow) -> Iterator[str]:
    """One per turn; none where there is one turn, without an answer."""
    observations = trajectory["observations"]
    if not observations:
        return
    start = 0
    for number, observation in enumerate(observations, start=1):
        size = tokens_in_words(_num_sampled(trajectory, start, observation["position"]))
        end = _ENDS.get(observation["turn_finish"], observation["turn_finish"])
        yield f"Turn {number}: {size}, {end}; {_answer(observation)}."
        start = observation["position"]
    left = _num_sampled(trajectory, start, None)
    number = len(observations) + 1
    if not left and not observations[-1]["tokens"]:
        yield f"Turn {number} begins a branch, which has a context of its own."
    elif trajectory["finish"] is None:
        yield f"Turn {number}: {tokens_in_words(left)} so far."
    elif left:
        yield f"Turn {number}: {tokens_in_words(left)}, the last turn."
    else:
        yield (
            f"Turn {number} has no token: what was observed left no room in the context or in "
            f"rollout.max_new_tokens."
        )


def observed_sentence(observations: Sequence[ObservationRow]) -> str:
    """How much of a trajectory was observed; empty where nothing was."""
    if not observations:
        return ""
    size = tokens_in_words(sum(len(observation["tokens"]) for observation in observations), "observed ")
    answers = "an answer to a turn" if len(observations) == 1 else f"{len(observations)} answers to turns"
    return f"{size} in {answers}, which no policy sampled."


def tokens_in_words(count: int, kind: str = "") -> str:
    return f"{count} {kind}token{'' if count == 1 else 's'}"


def _num_sampled(trajectory: TrajectoryRow, start: int, end: int | None) -> int:
    """Sampled tokens from the position `start` on, up to `end`."""
    return sum(
        len(segment["tokens"])
        for segment in trajectory["segments"]
        if segment["position"] >= start and (end is None or segment["position"] < end)
    )


def _answer(observation: ObservationRow) -> str:
    seconds = "" if observation["seconds"] is None else f" in {observation['seconds']:.3g} s"
    reward = "" if observation["reward"] is None else f", with a reward of {observation['reward']:g}"
    if observation["calls"]:
        said = f"it {_listed([_call(call) for call in observation['calls']])}"
    elif any(message["role"] == "summary" for message in observation["messages"]):
        said = "it is a summary, and the context begins again with it"
    elif observation["messages"]:
        said = f"the answer was {_listed([_shown(m['text']) for m in observation['messages']])}"
    else:
        said = "it was answered"
    return f"{said}{seconds}{reward}: {tokens_in_words(len(observation['tokens']), 'observed ')}"


def _call(call: CallRow) -> str:
    if call["error"]:
        named = f"a call of {call['name']}" if call["name"] else "a call"
        return f"wrote {named} that cannot be made ({_cut(call['error'])})"
    said = "which failed with" if call["is_error"] else "which answered"
    return f"called {call['name']}({_arguments(call['arguments'])}), {said} {_shown(call['output'])}"


def _arguments(arguments: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{_cut(name)}={_shown(value) if isinstance(value, str) else _cut(as_text(value))}"
        for name, value in arguments.items()
    )


def _shown(text: str) -> str:
    return repr(_cut(text))


def _cut(text: str) -> str:
    if len(text) <= LONGEST_TEXT:
        return text
    return f"{text[:LONGEST_TEXT]}... ({len(text) - LONGEST_TEXT} more characters)"


def _listed(parts: list[str]) -> str:
    return ", and ".join(parts)


EXPLANATIONS = {
    DropReason.FAULT: "fewer than two of its trajectories got a verdict, so there was no baseline",
    DropReason.BASELINE: "it was the greedy answer that the others' advantages are taken against",
    DropReason.NO_SIGNAL: "all its trajectories got an advantage of 0 (replay.drops_no_signal)",
    DropReason.UNCONFIRMED: "a server broke off before it said which version had made the tokens, or the "
    "group was dropped before they came",
    DropReason.STALE: "its oldest token would have been too old at training (rollout.abort_staleness)",
    DropReason.OUTLIVED: "a server or the run ended while it was generated, and the next version may not "
    "continue it (rollout.interrupt: drain)",
    DropReason.AFTER_STOP: "they came after the stop string that ended their trajectory (rollout.stop)",
    DropReason.SERVER: "servers kept failing on it until rollout.max_fault_retries was spent",
    DropReason.ABANDONED: "its agent ended or was started again, and never read what was sampled",
}
ENDS = {"stop": "It ended by itself.", "length": "It was cut at the length limit.", None: "It has not ended."}


def explain_trajectory(journal: JournalReader, group: GroupRow, trajectory: TrajectoryRow) -> list[str]:
    """Sentences on its admission, the servers that wrote it, its turns, its verdict and its fate."""
    name, number = trajectory["trajectory_id"], group["group_id"]
    return [
        f"Trajectory {name} is sample {trajectory['sample']} of group {number} (task {group['task_id']}).",
        f"Its group was admitted at {_time(group['admitted_seconds'])}, at version "
        f"{group['admitted_version']} of the trainer.",
        *_streams(journal.streams(name)),
        _tokens(trajectory),
        *turn_sentences(trajectory),
        *_verdict(trajectory),
        *_end(journal, group, trajectory),
    ]


def explain_group(journal: JournalReader, group: GroupRow) -> list[str]:
    """The fate of the group, then a line per trajectory."""
    lines = [
        f"Group {group['group_id']} (task {group['task_id']}) was admitted at "
        f"{_time(group['admitted_seconds'])}, at version {group['admitted_version']} of the trainer.",
        *_fate(journal, group),
    ]
    for trajectory in group["trajectories"]:
        judged = trajectory["outcome"] or "no verdict yet"
        if trajectory["branch_of"] is not None:
            own = trajectory["branch_verdict"]
            judged = f"branch of {trajectory['branch_of']}{'' if own is None else ', ' + own['outcome']}"
        judged = f"{trajectory['role']}, {judged}" if trajectory["role"] else judged
        advantage = trajectory["advantage"]
        weight = "no advantage" if advantage is None else f"advantage {advantage:+.4f}"
        lines.append(f"  {trajectory['trajectory_id']}  {judged}, {weight}. {_tokens(trajectory)}")
    return lines


def conservation_lines(books: Conservation) -> list[str]:
    """The conservation table: generated = the sum of all fates, in tokens."""
    lines = [f"{'fate':24s} {'tokens':>14s} {'share':>7s} {'groups':>9s}"]
    for fate in books.fates():
        lines.append(f"{fate.name:24s} {fate.tokens:14,d} {as_percent(fate.share, 1):>7} {fate.groups:9,d}")
    lines.append(
        f"{'generated':24s} {books.generated_tokens():14,d} {'100.0%':>7} {books.generated_groups():9,d}"
    )
    missing = books.missing_tokens()
    lines.append(
        "Every generated token is accounted for." if not missing else f"{missing} tokens are missing."
    )
    return lines


def _streams(streams: list[StreamRow]) -> Iterator[str]:
    for index, stream in enumerate(streams):
        if index == 0:
            verb = "Streamed from"
        elif stream["server"] == streams[index - 1]["server"]:
            verb = "Taken up again on"
        else:
            verb = "Moved to"
        when, position = _time(stream["started_seconds"]), stream["position"]
        yield f"{verb} {stream['server']} at {when}, {position} tokens in."


def _tokens(trajectory: TrajectoryRow) -> str:
    segments = trajectory["compacted"] or _joined(trajectory["segments"])
    total = sum(count for _, count, _ in segments)
    parts = [
        f"{count} by version {version}" + (" over keys and values of an older one" if is_continued else "")
        for version, count, is_continued in segments
    ]
    gone = " (the tokens themselves are no longer kept)" if trajectory["compacted"] else ""
    made = f"{total} tokens: {', '.join(parts)}{gone}." if parts else "No token was confirmed."
    observed = observed_sentence(trajectory["observations"])
    return f"{made}{' ' if observed else ''}{observed} {ENDS[trajectory['finish']]}"


def _joined(segments: list[SegmentRow]) -> list[list[int]]:
    """[version, tokens, is_continued] of neighboring segments of one kind."""
    joined: list[list[int]] = []
    for segment in segments:
        kind = [segment["version"], segment["is_continued"]]
        if joined and [joined[-1][0], joined[-1][2]] == kind:
            joined[-1][1] += len(segment["tokens"])
        else:
            joined.append([kind[0], len(segment["tokens"]), kind[1]])
    return joined


def _verdict(trajectory: TrajectoryRow) -> Iterator[str]:
    own = trajectory["branch_verdict"]
    if own is not None:
        reward = "no reward" if own["reward"] is None else f"reward {own['reward']:g}"
        told = f" ({own['detail']})" if own["detail"] else ""
        key = f"role {trajectory['role']}, agent.roles" if trajectory["role"] else "agent.verdict"
        yield f"The verdict on this conversation alone was {own['outcome']}, {reward}{told} ({key})."
    if trajectory["branch_of"] is not None:
        whole = f"It is a branch of {trajectory['branch_of']}"
        yield f"{whole}, whose verdict and advantage are its own." if own is None else f"{whole}."
        return
    if trajectory["outcome"] is None:
        yield "It has no verdict."
        return
    reward = "no reward" if trajectory["reward"] is None else f"reward {trajectory['reward']:g}"
    words = f"Its verdict was {trajectory['outcome']}, {reward}, after {trajectory['verify_seconds']:.3g} s"
    if trajectory["extracted"] is not None:
        words += f"; the answer read was {trajectory['extracted']!r}"
    yield words + (f" ({trajectory['detail']})." if trajectory["detail"] else ".")


def _end(journal: JournalReader, group: GroupRow, trajectory: TrajectoryRow) -> Iterator[str]:
    is_in_batch = group["state"] in ("ready", "taken", "trained")
    if is_in_batch and trajectory["advantage"] is None:
        yield "It left its group before the baseline, without a verdict: dropped (fault)."
        return
    if trajectory["advantage"] is not None:
        yield f"Its advantage over its group was {trajectory['advantage']:+.4f}."
    segments = trajectory["compacted"] or _joined(trajectory["segments"])
    if group["step"] is not None and segments:
        low, high = group["step"] - 1 - segments[-1][0], group["step"] - 1 - segments[0][0]
        yield f"At its step its tokens were {low if low == high else f'{low} to {high}'} version(s) old."
    yield from _fate(journal, group)


def _fate(journal: JournalReader, group: GroupRow) -> Iterator[str]:
    state, step = group["state"], group["step"]
    if state == "dropped":
        reason = DropReason(str(group["reason"]))
        yield f"The group was dropped ({reason}): {EXPLANATIONS[reason]}."
    elif state == "open":
        yield "The group is being generated or verified."
    elif state == "ready":
        yield "The group is complete and waits to be taken."
    elif state == "taken":
        yield f"The group was taken for step {step}; no checkpoint holds that step yet, a crash repeats it."
    else:
        commit = None if step is None else journal.commit_of_step(step)
        assert commit is not None, f"group {group['group_id']} is trained without a commit"
        yield (
            f"The group was trained in step {step}; the checkpoint of version {commit['version']} made that "
            f"durable at {_time(commit['committed_seconds'])}."
        )
    if group["repeated_steps"]:
        steps = ", ".join(map(str, group["repeated_steps"]))
        yield f"Later batches held it again, in step(s) {steps} (replay.repeated_groups_per_batch)."


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
