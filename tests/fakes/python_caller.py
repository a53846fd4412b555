"""A script that trains by `asyncrl.train`, as a user writes it: `python python_caller.py FOLDER SETTINGS`.

SETTINGS is JSON. There is no `if __name__`: a process that imported this module again would train again.
"""

import json
import os
import sys

import asyncrl

os.chdir(sys.argv[1])
settings = json.loads(sys.argv[2])
SEVEN = "7"


def share(text):
    return text.count(SEVEN) / len(text)


def writes_sevens(response, reference):
    return share(response) if response else None


if "resumes" in settings:
    run = asyncrl.resume("runs/sevens", steps=settings["resumes"])
else:
    run = asyncrl.train(
        "model",
        data=[{"prompt": f"{n}=", "answer": "7"} for n in range(10)],
        heldout=2,
        verifier=writes_sevens,
        name="sevens",
        steps=settings["steps"],
        rollout={"groups_per_batch": 4, "samples_per_group": 8, "max_new_tokens": 12},
        serving=settings["serving"],
        trainer={"learning_rate": 1e-2, "checkpoint_every_steps": 2, "stop_timeout_seconds": 120},
        evaluation={"every_steps": 0},
    )
if "until" in settings:
    while len(run.metrics) < settings["until"]:
        assert run.is_running, run.output
    # As a process does that the kernel ends, or as a script that is at its end.
    os.kill(os.getpid(), 9) if settings.get("is_killed") else sys.exit()
run.wait(quiet=True)
found = {
    "state": run.state,
    "rewards": run.metrics.column("reward_mean"),
    "responses": len(run.trajectories(step=1)),
    "fitting": run.trajectories(correct=True)[:1],
    "model": str(run.model_path),
    "lr": run.recipe.trainer.learning_rate,
}
print(json.dumps(found))
