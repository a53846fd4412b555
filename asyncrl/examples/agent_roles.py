"""Two roles for a sum: the proposer answers it, the checker agrees with an answer or writes another one.

A function of a recipe (agent.function, with agent.roles). The checker reads the proposer's answer and, in a
conversation of its own, one that is right where that is wrong: to agree is right in one of the two.
"""

import asyncio
import re

from asyncrl.examples.rows import OFFSETS
from asyncrl.rollout.agents.task import AgentTask


async def play(task: AgentTask) -> dict[str, float]:
    """Scores of the roles; a proposer without an answer leaves the checker nothing to read."""
    proposed = await say(task, "proposer", task.prompt)
    if proposed is None:
        return {"proposer": 0.0}
    total = sum(map(int, task.prompt.rstrip("=").split("+")))
    wrong = wrong_sums(total)
    # The same one whenever the task is played: a restart finds its calls by what they say.
    shown = [proposed, wrong[total % len(wrong)] if proposed == total else total]
    said = await asyncio.gather(*(say(task, "checker", f"{task.prompt}{answer}?") for answer in shown))
    are_right = [
        word is not None and (word == answer) == (answer == total)
        for word, answer in zip(said, shown, strict=True)
    ]
    return {"proposer": float(proposed == total), "checker": sum(are_right) / len(are_right)}


async def say(task: AgentTask, role: str, text: str) -> int | None:
    """The number in the box at the end of the role's reply."""
    reply = await task.say([{"role": "user", "content": text}], model=role)
    found = re.search(r"\\boxed\{([0-9]{1,6})\}$", reply["content"])
    return int(found[1]) if found else None


def wrong_sums(total: int) -> list[int]:
    """Numbers of 3 digits that are off as the base model's guesses are."""
    return [total + offset for offset in OFFSETS if 100 <= total + offset < 1000]
