"""A chain of three stages as it is on disk: a selection, fine-tuning, and RL at step 2 of 4.

Of 40 held-out tasks the base model solves 10, the fine-tuned one 30, the one at step 2 35.
"""

import json
from pathlib import Path
from typing import Any

import yaml
from fakes.compared_runs import write_run
from fakes.statuses import make_status

from asyncrl.journal.starts import CONTROLLER, RUN, Usage, record_usage
from asyncrl.journal.writer import Journal
from asyncrl.run.status import write_status

ACCOUNT = {
    "seen": {"rows": 100, "groups": 0, "responses": 160},
    "generated": 160,
    "generated_tokens": 1600,
    "rows": {"written": 8, "not correct": 2, "not of --rows": 90},
    "groups": {},
    "responses": {"written": 20, "not correct": 140},
}


def write_chain(folder: Path) -> Path:
    """The chain's folder, beside those of its runs; `folder` is new."""
    chain, sft, rl = (folder / name for name in ("story", "sft", "rl"))
    base, tuned, learned = (solved(count) for count in (10, 30, 35))
    export = f"{sft}/checkpoints/step-4/hf"
    write_run(sft, {0: base, 4: tuned}, recipe={"name": "sft", "stage": "sft"})
    write_run(
        rl,
        {0: tuned, 2: learned},
        num_steps=2,
        recipe={"name": "rl", "model": {"path": export}, "trainer": {"num_steps": 4}},
    )
    write_status(sft, make_status(state="finished", step=4, total_steps=4))
    write_status(rl, make_status(state="training", step=2, total_steps=4))
    journal = Journal(sft / "journal.sqlite")
    record_usage(journal, 1.0, [Usage(RUN, 60.0), Usage(CONTROLLER, 60.0, 90.0)])
    journal.close()
    chain.mkdir()
    out = folder / "round1.jsonl"
    stages = [("round1", "select", out), ("sft", "sft", sft), ("rl", "rl", rl)]
    record = {
        "name": "story",
        "file": str(folder / "story.yaml"),
        "stages": [{"name": name, "kind": kind, "place": str(place)} for name, kind, place in stages],
    }
    (chain / "chain.json").write_text(json.dumps(record))
    (chain / "stage-1.json").write_text(json.dumps(selection(folder)))
    listed = {
        "folder": "story",
        "stages": [{"select": "base.yaml", "out": "round1.jsonl", "n": 16}, "sft.yaml", "rl.yaml"],
    }
    (folder / "story.yaml").write_text(yaml.safe_dump(listed))
    return chain


def selection(folder: Path, **changed: Any) -> dict[str, Any]:
    return {
        "settings": {"select": str(folder / "base.yaml")},
        "state": "finished",
        "written_seconds": 0.0,
        "model": "/models/base",
        "wall_seconds": 30.0,
        "cpu_seconds": 45.0,
        "account": ACCOUNT,
        "num_lines": 20,
        "digest": "0",
        **changed,
    }


def solved(count: int) -> list[float]:
    return [1.0] * count + [0.0] * (40 - count)
