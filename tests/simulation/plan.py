"""What one schedule is made of: sizes, speeds and faults, all drawn from its seed."""

import random
from dataclasses import dataclass, field

from asyncrl.replay.policy import ORDERS

SERVER_FAULTS = (
    "die",
    "bounce",
    "hang",
    "stall",
    "break_stream",
    "refuse_update",
    "corrupt_update",
    "lose_reply",
    "duplicate_event",
    "drop_event",
    "swap_events",
    "garbage_event",
)
COPY_FAULTS = ("damage_copy", "double_prepare", "late_prepare", "refuse_prepare")
"""Faults of the copy on a server's host, where versions go as deltas."""
TRAINER_POINTS = (
    "restored",
    "before take",
    "during take",
    "after take",
    "after step",
    "during publish",
    "after publish",
    "after save",
    "after commit",
)


RECOVERIES = ("replayable", "stateless", "neither")


@dataclass(slots=True)
class TurnPlan:
    """Environment and tools of a schedule."""

    recovery: str
    has_environment: bool
    has_tools: bool
    stop: tuple[str, ...]
    """Texts that end a turn."""
    max_turns: int
    max_turn_tokens: int | None
    context_tokens: int
    answer_seconds: float
    timeout_seconds: float
    max_tool_seconds: float
    max_processes: int
    num_fault_retries: int
    fault_share: float
    """Share of starts and turns that fault."""
    hang_share: float
    """Likewise, until the turn's time is over."""
    death_share: float
    """Share of processes that die, after each answer."""


@dataclass(slots=True)
class Plan:
    """`draw` makes one; a test may change a field before the schedule runs."""

    seed: int
    num_servers: int
    groups_per_batch: int
    samples_per_group: int
    max_staleness: int
    order: str
    interrupt: str
    tokens_per_round: int | None
    oversampling: float | None
    abort_staleness: int | None
    hedge_seconds: float | None
    drops_no_signal: bool
    num_steps: int
    max_new_tokens: int
    max_running_requests: int
    commit_every: int
    has_evaluation: bool
    token_seconds: float
    """Mean time of one decoding round of a server."""
    step_seconds: float
    verify_seconds: float
    fault_share: float
    """Of verifications."""
    confirm_share: float
    """Of chunks that say which version made their tokens."""
    are_servers_external: bool
    """They outlive a controller that is killed."""
    is_colocated: bool = False
    """Servers sleep while the trainer has a batch."""
    repeated_groups: int = 0
    """Per batch."""
    max_uses: int = 2
    keep_steps: int = 200
    """Behind the last checkpoint, before their tokens are compacted."""
    server_faults: list[tuple[float, int, str]] = field(default_factory=list)
    """(seconds, server, what)."""
    fleet_changes: list[tuple[float, int, str]] = field(default_factory=list)
    """(seconds, server, "add" | "remove")."""
    trainer_crashes: list[tuple[str, int]] = field(default_factory=list)
    """Per life of the trainer: at which point and which pass of it; it hangs if the pass is negative."""
    controller_ends: list[tuple[str, float]] = field(default_factory=list)
    """("kill" | "stop" | "full disk", seconds after its start), one per life of the controller."""
    selection: str = "uniform"
    """data.selection."""
    pilot_samples: int | None = None
    """Trajectories that a group is admitted with; None: all."""
    turns: TurnPlan | None = None
    """None where trajectories have one turn."""
    has_deltas: bool = False
    """Whether versions go as deltas where that is worth it (serving.weight_encoding)."""
    judges_groups: bool = False
    """Whether the verifier judges all responses of a group together."""

    def is_calm(self) -> bool:
        """Whether servers, trainer and controller live on without a fault."""
        return not (self.server_faults or self.fleet_changes or self.trainer_crashes or self.controller_ends)


def draw(seed: int) -> Plan:
    """The plan of a seed. The order of the draws is kept, so that a seed keeps its plan."""
    rng = random.Random(f"plan {seed}")
    plan = _draw_sizes(seed, rng)
    # A generator of its own for what was added later: earlier seeds keep the rest of their plan.
    more = random.Random(f"fleet {seed}")
    if more.random() < 0.3 and plan.max_staleness:
        plan.oversampling = more.choice((1.0, 1.25, 1.5, 2.0))
    if more.random() < 0.3 and plan.max_staleness:
        plan.abort_staleness = more.randrange(plan.max_staleness)
    span = 3.0 + plan.num_steps * (plan.step_seconds + plan.max_new_tokens * plan.token_seconds)
    _draw_faults(plan, rng, span)
    _draw_fleet(plan, more, span)
    _draw_repetition(plan, more)
    if more.random() < 0.2:
        plan.interrupt, plan.oversampling = "drain", None
    if more.random() < 0.25:
        plan.is_colocated, plan.are_servers_external = True, False
    _draw_turns(plan, random.Random(f"turns {seed}"))
    rng = random.Random(f"selection {seed}")
    plan.selection = rng.choice(("uniform", "learnable", "retire"))
    if rng.random() < 0.25:
        plan.pilot_samples, plan.samples_per_group = 2, rng.choice((3, 3, 5))
        plan.max_running_requests = max(plan.max_running_requests, plan.samples_per_group)
    judges = random.Random(f"groups {seed}").random() < 0.15
    plan.judges_groups = judges and plan.pilot_samples is None
    _draw_deltas(plan, random.Random(f"deltas {seed}"), span)
    return plan


def _draw_deltas(plan: Plan, rng: random.Random, span: float) -> None:
    plan.has_deltas = rng.random() < 0.3
    if plan.has_deltas and plan.server_faults:
        more = [
            (rng.uniform(0.2, span), rng.randrange(plan.num_servers), rng.choice(COPY_FAULTS))
            for _ in range(rng.randint(1, 4))
        ]
        plan.server_faults = sorted([*plan.server_faults, *more])


def draw_copies(seed: int) -> Plan:
    """A plan in which nothing fails but the copies on the servers' hosts, each of them in every way."""
    rng = random.Random(f"copies {seed}")
    plan = draw(seed)
    plan.has_deltas, plan.is_colocated, plan.num_steps, plan.turns = True, False, 8, None
    plan.fleet_changes, plan.trainer_crashes, plan.controller_ends = [], [], []
    span = plan.num_steps * (plan.step_seconds + plan.max_new_tokens * plan.token_seconds)
    plan.server_faults = sorted(
        (rng.uniform(0.2, span), server, kind) for kind in COPY_FAULTS for server in range(plan.num_servers)
    )
    return plan


def _draw_turns(plan: Plan, rng: random.Random) -> None:
    if rng.random() >= 0.35:
        return
    plan.max_new_tokens *= 2
    kinds = rng.choice(((True, False), (True, False), (True, True), (False, True)))
    plan.turns = TurnPlan(
        recovery=rng.choice(RECOVERIES),
        has_environment=kinds[0],
        has_tools=kinds[1],
        stop=rng.choice(((), ("5 ",))),
        max_turns=rng.choice((2, 3, 6)),
        max_turn_tokens=rng.choice((None, 3, 6)),
        context_tokens=rng.choice((16, 30, 100)),
        answer_seconds=rng.choice((0.01, 0.2, 2.0)),
        timeout_seconds=rng.choice((2.0, 20.0)),
        max_tool_seconds=rng.choice((4.0, 60.0)),
        max_processes=rng.choice((1, 3, 100)),
        num_fault_retries=rng.choice((0, 1, 2)),
        fault_share=rng.choice((0.0, 0.0, 0.05, 0.2)),
        hang_share=rng.choice((0.0, 0.02, 0.1)),
        death_share=rng.choice((0.0, 0.1, 0.3)),
    )
    if rng.random() < 0.15:
        # Nothing but tools then decides what a drain waits for.
        plan.interrupt, plan.oversampling, plan.tokens_per_round = "drain", None, None
        plan.server_faults, plan.fleet_changes, plan.trainer_crashes, plan.controller_ends = [], [], [], []


def _draw_sizes(seed: int, rng: random.Random) -> Plan:
    return Plan(
        seed=seed,
        num_servers=rng.choice((1, 2, 2, 3)),
        groups_per_batch=rng.choice((1, 2, 2, 3)),
        samples_per_group=rng.choice((2, 2, 3)),
        max_staleness=rng.choice((0, 1, 1, 2)),
        interrupt=rng.choice(("continue", "continue", "retract", "abort")),
        tokens_per_round=rng.choice((None, None, 1, 4)),
        oversampling=None,
        abort_staleness=None,
        hedge_seconds=None,
        order=rng.choice(tuple(ORDERS)),
        drops_no_signal=rng.random() < 0.3,
        num_steps=rng.choice((2, 3, 4)),
        max_new_tokens=rng.choice((3, 6, 9)),
        max_running_requests=rng.choice((3, 6, 20)),
        commit_every=rng.choice((1, 2, 3)),
        has_evaluation=rng.random() < 0.3,
        token_seconds=rng.choice((0.02, 0.1, 0.5)),
        step_seconds=rng.choice((0.02, 0.2, 1.0)),
        verify_seconds=rng.choice((0.001, 0.1, 1.0)),
        fault_share=rng.choice((0.0, 0.0, 0.1, 0.4)),
        confirm_share=rng.choice((0.0, 0.5, 1.0, 1.0)),
        are_servers_external=rng.random() < 0.5,
    )


def _draw_faults(plan: Plan, rng: random.Random, span: float) -> None:
    """Within `span` seconds: faults of servers, ends of trainers and controllers."""
    if rng.random() < 0.75:
        plan.server_faults = sorted(
            (rng.uniform(0.2, span), rng.randrange(plan.num_servers), rng.choice(SERVER_FAULTS))
            for _ in range(rng.randint(1, 4))
        )
    if rng.random() < 0.6:
        plan.trainer_crashes = [
            (rng.choice(TRAINER_POINTS), rng.randint(1, plan.num_steps) * rng.choice((1, 1, 1, -1)))
            for _ in range(rng.randint(1, 3))
        ]
    if rng.random() < 0.4:
        plan.controller_ends = [
            (rng.choice(("kill", "kill", "stop", "full disk")), rng.uniform(0.1, span))
            for _ in range(rng.randint(1, 2))
        ]


def _draw_fleet(plan: Plan, more: random.Random, span: float) -> None:
    if more.random() < 0.4:
        plan.hedge_seconds = more.choice((1.0, 4.0, 15.0))
    if more.random() < 0.3:
        plan.fleet_changes = sorted(
            (more.uniform(0.2, span), more.randrange(plan.num_servers), more.choice(("remove", "add")))
            for _ in range(more.randint(1, 4))
        )


def _draw_repetition(plan: Plan, more: random.Random) -> None:
    if more.random() < 0.4 and plan.max_staleness:
        plan.max_uses = more.choice((2, 3))
        plan.repeated_groups = more.randint(1, (plan.max_uses - 1) * plan.groups_per_batch)
        # Long enough for a group to be used up, and for what is compacted to matter.
        plan.max_staleness, plan.num_steps = more.choice((plan.max_staleness, 4)), more.choice((4, 6))
        plan.commit_every = more.choice((1, plan.commit_every))
    if plan.repeated_groups or more.random() < 0.5:
        plan.keep_steps = 1
