"""The invariants of a run, checked against what the world knows."""

import sqlite3
from collections import Counter
from collections.abc import Mapping

from fakes.sequences import sampled_positions
from simulation.trajectories import check_journaled, check_sequence_is_journaled
from simulation.verifying import Codec, truth
from simulation.world import World, chain

from asyncrl.records import Batch, RowVisit, ScoredSequence
from asyncrl.tasks.order import TaskOrder


def check_batch(world: World, batch: Batch, version: int) -> None:
    """What a trainer of `version` was given: the right step, true tags, nothing stale, no fault."""
    plan = world.plan
    if batch.taken_version != version:
        world.violate(f"asked for step {version}, was given {batch.taken_version}")
    if world.batches.setdefault(version, batch) != batch:
        world.violate(f"the batch of step {version} changed between two takes")
    names = Counter(sequence.sequence_id for sequence in batch.sequences)
    groups = Counter(name.rpartition("-")[0] for name in names)
    if max(names.values()) > 1:
        world.violate(f"step {version} holds a trajectory twice: {names.most_common(1)}")
    new = [group for group in groups if world.first_steps.setdefault(group, version) == version]
    num_repeated = len(groups) - len(new)
    if len(new) != plan.groups_per_batch or num_repeated > plan.repeated_groups or min(groups.values()) < 2:
        world.violate(f"step {version} holds groups {dict(groups)}, of which {new} are new")
    for sequence in batch.sequences:
        _check_sequence(world, sequence, version)


def _check_sequence(world: World, sequence: ScoredSequence, step: int) -> None:
    name, tokens, places = sequence.sequence_id, sequence.response_tokens, sampled_positions(sequence)
    lengths = {
        len(column)
        for column in (
            places,
            sequence.behavior_logprobs,
            sequence.token_versions,
            sequence.are_continued,
        )
    }
    if len(lengths) != 1 or not tokens:
        return world.violate(f"{name}: columns of lengths {lengths}")
    contexts = [chain(sequence.prompt_tokens)]
    for token in tokens:
        contexts.append(chain((token,), contexts[-1]))
    for index, position in enumerate(places):
        token, context = tokens[position], contexts[position]
        made = world.find(sequence.behavior_logprobs[index])
        tag, is_continued = sequence.token_versions[index], sequence.are_continued[index]
        if (made.trajectory, made.position, made.token) != (name, position, token):
            world.violate(f"{name}[{position}] = {token} was made as {made}")
        if made.context != context:
            world.violate(f"{name}[{position}] was sampled after other tokens than it stands behind")
        if made.version != tag:
            world.violate(f"{name}[{position}] is tagged version {tag}, made by {made.weights}")
        if made.is_mixed and not is_continued:
            world.violate(f"{name}[{position}] stands on other weights' cache and is not tagged so")
        limit = world.plan.max_staleness
        if world.plan.abort_staleness is not None:
            limit = world.plan.abort_staleness
        if not step - limit <= tag <= step:
            world.violate(f"{name}[{position}] of version {tag} is trained at step {step}")
    if list(sequence.token_versions) != sorted(sequence.token_versions):
        world.violate(f"{name}: versions decrease: {sequence.token_versions}")
    if world.plan.interrupt == "drain" and len(set(sequence.token_versions)) > 1:
        world.violate(f"{name}: a publish did not wait for its end: {sequence.token_versions}")
    check_sequence_is_journaled(world, sequence)
    if world.plan.turns is None and sequence.reward != truth(Codec().decode(tokens)):
        world.violate(f"{name} has reward {sequence.reward}, which no verifier gave")


def check_commit(world: World, connection: sqlite3.Connection, version: int) -> None:
    """Right after a commit of `version`: the journal calls nothing trained that the checkpoint lacks."""
    query = "SELECT count(*) FROM groups WHERE state = 'trained' AND taken_version >= ?"
    ((count,),) = connection.execute(query, (version,)).fetchall()
    if count:
        world.violate(f"{count} groups are called trained that version {version} has not seen")


def check_trained(world: World) -> None:
    """The final checkpoint: each step once, in order, each group as often as allowed over all steps."""
    plan = world.plan
    if not world.checkpoints:
        return world.violate("no checkpoint was saved")
    last = world.checkpoints[max(world.checkpoints)]
    steps = [batch.taken_version for batch in last.trained]
    if steps != list(range(plan.num_steps)):
        world.violate(f"the final weights hold steps {steps}")
    groups = Counter(
        group
        for batch in last.trained
        for group in {s.sequence_id.rpartition("-")[0] for s in batch.sequences}
    )
    allowed = plan.max_uses if plan.repeated_groups else 1
    repeated = [group for group, count in groups.items() if count > allowed]
    if repeated:
        world.violate(f"groups {repeated} were trained more than {allowed} times")


def check_choices(world: World, connection: sqlite3.Connection, order: TaskOrder) -> None:
    """Each group's row is the one that the file implies: by the seed, the groups before it, and the visits of
    older versions. So no crash changed a choice, or made one that a later start would not make."""
    groups = connection.execute("SELECT task_id, admitted_version FROM groups ORDER BY group_id").fetchall()
    visits = connection.execute(
        "SELECT task_id, group_id, version, num_graded, correct FROM answers ORDER BY group_id"
    )
    order.recall((), ((task_id, None, RowVisit(*visit)) for task_id, *visit in visits))
    for position, (task_id, version) in enumerate(groups):
        if order.next(position, version).task_id != task_id:
            return world.violate(f"group {position} asks {task_id}, which the journal does not imply")


def check_pilots(world: World, connection: sqlite3.Connection) -> None:
    """A group that ended has all its trajectories, or its pilot alone, with one reward."""
    plan = world.plan
    if plan.pilot_samples is None:
        return
    for group, size, least, most in connection.execute(
        "SELECT group_id, count(*), min(correctness), max(correctness) FROM trajectories "
        "JOIN groups USING (group_id) WHERE branch_of IS NULL AND taken_version IS NOT NULL GROUP BY group_id"
    ):
        if size == plan.pilot_samples:
            world.reached.add("a pilot that is stopped")
            if least is None or least != most:
                world.violate(f"group {group} ended with a pilot of the rewards {least} to {most}")
        elif size == plan.samples_per_group:
            world.reached.add("a pilot that is extended")
        else:
            world.violate(f"group {group} has {size} trajectories")


def check_conservation(world: World, table: Mapping[str, int]) -> None:
    """Generated = trained + taken + queued + dropped; nothing is left in between at the end."""
    fates = {name: tokens for name, tokens in table.items() if name != "generated"}
    if table["generated"] != sum(fates.values()) or min(table.values()) < 0:
        world.violate(f"tokens are not conserved: {dict(table)}")
    if world.plan.is_calm() and table["dropped: outlived"]:
        world.violate("a publish did not wait for trajectories that could have ended")
    is_exact = not world.has_protocol_fault and not world.plan.controller_ends
    if is_exact and table["generated"] != world.num_delivered_tokens:
        world.violate(f"{world.num_delivered_tokens} tokens were delivered, {table['generated']} counted")


def check_journal(world: World, connection: sqlite3.Connection, table: Mapping[str, int]) -> None:
    """The file tells the same story as the queue in memory."""
    last = world.checkpoints[max(world.checkpoints)] if world.checkpoints else None
    trained = {s.sequence_id for batch in (last.trained if last else ()) for s in batch.sequences}
    rows = connection.execute(
        "SELECT trajectory_id FROM trajectories JOIN groups USING (group_id) "
        "WHERE state = 'trained' AND advantage IS NOT NULL"
    )
    called_trained = {name for (name,) in rows}
    if trained != called_trained:
        world.violate(f"checkpoint and journal disagree on {sorted(trained ^ called_trained)}")
    for name, outcome, correctness, reward, text in connection.execute(
        "SELECT trajectory_id, outcome, correctness, reward, text FROM trajectories WHERE outcome IS NOT NULL"
    ):
        if (outcome == "fault") != (correctness is None) or (correctness is None) != (reward is None):
            world.violate(f"{name}: outcome {outcome} with correctness {correctness}, reward {reward}")
        elif world.plan.turns is None and text is not None and correctness not in (None, truth(text)):
            world.violate(f"{name} is recorded as {outcome}, correctness {correctness}")
    check_journaled(world, connection)
    ((held,),) = connection.execute("SELECT coalesce(sum(length(tokens) / 4), 0) FROM segments")
    ((compacted,),) = connection.execute("SELECT coalesce(sum(num_tokens), 0) FROM compacted")
    dropped, journaled = table["dropped: unconfirmed"] + table["dropped: after_stop"], held + compacted
    if table["generated"] - dropped != journaled:
        world.violate(f"{table['generated']} - {dropped} tokens counted, {journaled} journaled")
