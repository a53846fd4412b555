"""What everybody in a schedule shares: who made which token, which weights exist, what was trained.

The world knows the truth. A behavior log-prob is minus the serial number of its token, so that wherever a
token turns up, the ledger says who made it, with which weights and after which tokens.
"""

import asyncio
import random
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from simulation.plan import Plan

from asyncrl.controller.controller import Controller
from asyncrl.records import Batch, Trajectory

STOP_TOKENS = (1, 2, 3)
FIRST_TOKEN = 10
FIRST_OBSERVED = 2000
"""Tokens from here on are observed, and never sampled."""


@dataclass(frozen=True, slots=True)
class Made:
    """One token, when a server sampled it."""

    trajectory: str
    position: int
    token: int
    version: int
    weights: str
    context: int
    """`chain` of the tokens before it."""
    is_mixed: bool
    """Some keys and values before it came from other weights."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    version: int
    weights: tuple[str, ...]
    """By version: what this trainer's history is made of."""
    trained: tuple[Batch, ...]


@dataclass
class World:
    plan: Plan
    folder: Path
    rng: random.Random
    connection: sqlite3.Connection
    """Of the journal's disk."""
    violations: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    ledger: list[Made] = field(default_factory=list)
    weights_at: dict[str, str] = field(default_factory=dict)
    """Publication folder -> the weights in it."""
    checkpoints: dict[int, Checkpoint] = field(default_factory=dict)
    valid_weights: tuple[str, ...] | None = None
    """History of the trainer that was answered last: servers must not sample from anything else."""
    num_trainer_lives: int = 0
    is_trainer_computing: bool = False
    """The trainer has a batch and has not published what it makes of it."""
    batches: dict[int, Batch] = field(default_factory=dict)
    """Step -> what its first take was answered."""
    first_steps: dict[str, int] = field(default_factory=dict)
    """Group -> the step that trained it first."""
    num_delivered_tokens: int = 0
    """Training tokens that reached the controller in events it could read."""
    has_protocol_fault: bool = False
    controller: Controller | None = None
    """The one that lives."""
    late: set[str] = field(default_factory=set)
    """Trajectories one of whose turns took too long."""
    reached: set[str] = field(default_factory=set)
    """Events that turns met, for the test that schedules reach all of them."""
    num_environments: int = 0
    """Processes of the controller that lives."""
    tool_seconds: dict[str, float] = field(default_factory=dict)
    """Trajectory -> time of its environments and tools."""

    def note(self, event: str) -> None:
        self.events.append(f"{asyncio.get_running_loop().time():9.3f} {event}")

    def violate(self, what: str) -> None:
        self.violations.append(what)
        self.note(f"VIOLATION {what}")

    def trajectory(self, name: str) -> Trajectory | None:
        """As the queue in memory has it; None unless its group is open."""
        assert self.controller is not None
        group = self.controller.queue.live.get(int(name.partition("-")[0]))
        return next((t for t in group.trajectories if t.trajectory_id == name), None) if group else None

    def is_open(self, name: str) -> bool:
        return self.trajectory(name) is not None

    def make(self, made: Made) -> float:
        """Enters a token into the ledger; returns its behavior log-prob."""
        self.ledger.append(made)
        return -float(len(self.ledger))

    def find(self, logprob: float) -> Made:
        return self.ledger[int(-logprob) - 1]

    def delay(self, mean_seconds: float) -> float:
        """Mostly short, sometimes ten times as long, often exactly nothing."""
        kind = self.rng.random()
        if kind < 0.2:
            return 0.0
        return self.rng.expovariate(1.0 / mean_seconds) * (10.0 if kind > 0.95 else 1.0)


def chain(tokens: Sequence[int], before: int = 0) -> int:
    """A hash of a token sequence that can be carried on."""
    for token in tokens:
        before = hash((before, token))
    return before
