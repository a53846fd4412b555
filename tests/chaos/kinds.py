"""The kinds of runs that are broken: one turn, turns with an environment and the tool python, an agent.

All learn from random weights; each has its verifier, its monkey, and the share of correct answers that it
must reach in spite of all."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fakes.base_model import write_base_model
from fakes.whole_run import WholeRun
from monkey import AgentMonkey, Monkey, TurnsMonkey
from tokenizers.models import WordLevel

from asyncrl.examples.rows import SPECIAL, split_tokenizer

OWN = Path(__file__).parent
NUM_STEPS_AHEAD = 100_000
"""More than any run here makes: the run is ended by Ctrl-C, then finished with a smaller number."""
TEMPLATE = "{% for m in messages %}{{ m.content }}={% endfor %}"
PATIENT = {"learning_rate": 1e-2, "step_timeout_seconds": 60.0}
"""Where no trainer is stopped: it may be slow."""
VOCABULARY = (*SPECIAL, "<python>", "</python>", "<output>", "</output>", *"0123456789+-=", "?")
"""So small that random weights call the tool at times. Other characters become a question mark."""


@dataclass(frozen=True)
class Kind:
    name: str
    share: float
    """Share of the faults, where no kind is named."""
    make: Callable[[Path], WholeRun]
    monkey: type[Monkey]
    min_share_correct: float
    """At the end: greedy on held-out tasks, or sampled in the last steps where there are none."""
    least_steps: int = 0
    """As many as an undisturbed run needs for that."""
    may_abandon: bool = False
    fills_disks: bool = False


def one_turn(folder: Path) -> WholeRun:
    return _run(folder)


def with_turns(folder: Path) -> WholeRun:
    run = _run(
        folder,
        rollout={"max_new_tokens": 24, "samples_per_group": 4},
        model={"context_tokens": 128},
        trainer=PATIENT,
        turns={
            "environment": "./game.py:Game",
            "tools": ["python"],
            "call_format": "tags",
            "max_turn_tokens": 8,
            "max_turns": 5,
            "max_observed_tokens": 16,
            "max_processes": 16,
        },
        verifying={"num_workers": 2, "default": "./verdicts.py:Called"},
    )
    _give(run, "game.py", "verdicts.py")
    rows = [json.dumps({"prompt": f"{n % 10}=", "answer": "7"}) for n in range(40)]
    for name in ("train.jsonl", "heldout.jsonl"):
        (folder / name).write_text("\n".join(rows))
    tokenizer = split_tokenizer(VOCABULARY, r"</?python>|</?output>|[\s\S]")
    tokenizer.model = WordLevel(tokenizer.get_vocab(), unk_token="?")
    write_base_model(folder / "model", tokenizer=tokenizer)
    (folder / "model" / "chat_template.jinja").write_text(TEMPLATE)
    return run


def with_agent(folder: Path) -> WholeRun:
    run = _run(
        folder,
        rollout={"samples_per_group": 4},
        model={"context_tokens": 64},
        trainer=PATIENT,
        # Evaluations start no agents.
        data={"heldout": None},
        serving={"weight_encoding": "delta"},
        agent={"command": ["python", str(folder / "chaos_agent.py")], "max_agents": 16},
    )
    _give(run)
    (folder / "chaos_agent.py").write_text((OWN / "agent.py").read_text())
    (folder / "model" / "chat_template.jinja").write_text(TEMPLATE)
    return run


def _run(folder: Path, **sections: dict[str, Any]) -> WholeRun:
    common: dict[str, dict[str, Any]] = {
        "trainer": {
            "num_steps": NUM_STEPS_AHEAD,
            "learning_rate": 3e-3,
            "checkpoint_every_steps": 10,
            "step_timeout_seconds": 20.0,
        },
        "serving": {"num_servers": 2, "request_timeout_seconds": 15.0, "start_timeout_seconds": 240.0},
        "verifying": {"num_workers": 2},
    }
    merged = {name: common.get(name, {}) | sections.get(name, {}) for name in common | sections}
    return WholeRun(folder, **merged)


def _give(run: WholeRun, *files: str) -> None:
    for name in files:
        (run.folder / name).write_text((OWN / name).read_text())
    (run.folder / "at_work").mkdir()


KINDS = (
    Kind("one_turn", 0.5, one_turn, Monkey, min_share_correct=0.95, fills_disks=True),
    Kind("turns", 0.3, with_turns, TurnsMonkey, min_share_correct=0.5, least_steps=40),
    Kind("agent", 0.2, with_agent, AgentMonkey, min_share_correct=0.9, least_steps=25, may_abandon=True),
)
