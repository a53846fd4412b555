"""Why a group or a trajectory was trained or dropped, in plain sentences from the journal.

Steps count from 1: step n made version n.
"""

from collections.abc import Iterator
from datetime import UTC, datetime

from asyncrl.journal.conservation import Conservation
from asyncrl.journal.explain_turns import observed_sentence, turn_sentences
from asyncrl.journal.reader import JournalReader
from asyncrl.journal.rows import GroupRow, SegmentRow, StreamRow, TrajectoryRow
from asyncrl.records import DropReason
from asyncrl.system.rounding import as_percent

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
        yield f"The verdict on this conversation alone was {own['outcome']}, {reward}{told} (agent.verdict)."
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
