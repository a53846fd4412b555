"""A run with something to see in every view of trajectories: six steps of eight tasks that the policy learns.

Made by the queue and the journal themselves, from a seed; only what a model would have said is invented.
"""

import math
import random
import struct
from pathlib import Path

import yaml
from fakes.records import make_queue
from tokenizers import Tokenizer, decoders, models

from asyncrl.journal.statements import trained_tokens
from asyncrl.observe.metrics.mishaps import WarningLog
from asyncrl.records import DropReason, Finish, Score, Segment, Task, TrainedTokens, VerifierSpec
from asyncrl.replay.group import Group
from asyncrl.replay.queue import ReplayQueue
from asyncrl.run.metrics_file import MetricsWriter

NUM_STEPS = 6
BATCH = 4
SAMPLES = 4
NUM_TASKS = 8
TRACE = """Traceback (most recent call last):
  File "/runs/verifiers/sums.py", line 41, in verify
    return self._compare(extract_boxed(response), reference)
  File "/runs/verifiers/sums.py", line 63, in _compare
    return abs(found - reference) < 1e-6
TypeError: unsupported operand type(s) for -: 'NoneType' and 'int'
"""
FAULT = (
    "the verifier raised TypeError: unsupported operand type(s) for -: 'NoneType' and 'int' "
    "(/runs/verifiers/sums.py:63)"
)
WAYS = (
    "Let me add them step by step. {a} and {b} : the ones give {ones} , so the sum is {c} .\n",
    "We need {a} + {b} . First {a} + {tens} is {part} , then {part} + {rest} is {c} . Wait , check : yes .\n",
    "{a} + {b} is about {near} ... more precisely {c} .\n",
)


class Words:
    """Whole words as tokens, with the space before them."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    def __call__(self, text: str) -> list[int]:
        words = [f" {word}" for line in text.split("\n") for word in [*line.split(), "\n"]][:-1]
        return [self.ids.setdefault("\n" if word == " \n" else word, len(self.ids)) for word in words]

    def save(self, folder: Path) -> None:
        folder.mkdir()
        tokenizer = Tokenizer(models.WordLevel(self.ids, unk_token="?"))
        tokenizer.decoder = decoders.Fuse()
        tokenizer.save(str(folder / "tokenizer.json"))


class Play:
    """One run, written as it would be."""

    def __init__(self, queue: ReplayQueue) -> None:
        self.queue = queue
        self.source = random.Random(7)
        self.words = Words()

    def task(self) -> Task:
        number = self.queue.num_admitted % NUM_TASKS
        a, b = 17 + 13 * number, 26 + 7 * number
        prompt = f"What is {a} + {b} ? Reason , then put the answer into \\boxed{{}} .\n"
        return Task(
            f"sums:{number + 1}", prompt, tuple(self.words(prompt)), (a, b), VerifierSpec("./sums.py:Sums")
        )

    def say(self, a: int, b: int, version: int) -> tuple[str, int]:
        """A response and its answer, right more often the newer the version."""
        is_right = self.source.random() < 0.2 + 0.14 * version
        found = a + b if is_right else a + b + self.source.choice((-10, -1, 10))
        way = self.source.choice(WAYS).format(
            a=a, b=b, ones=a % 10 + b % 10, c=found, tens=b - b % 10, part=a + b - b % 10, rest=b % 10,
            near=round(a + b, -1),
        )  # fmt: skip
        return f"{way} So the answer is \\boxed{{ {found} }} .", found

    def generate(self, group: Group, version: int) -> None:
        a, b = group.task.reference
        for index, trajectory in enumerate(group.trajectories):
            text, found = self.say(a, b, version)
            tokens = self.words(text)
            # Where a publish came in between, a newer version takes over.
            cut = self.source.randrange(5, len(tokens)) if version > group.admitted_version else len(tokens)
            chunks = ((group.admitted_version, tokens[:cut]), (version, tokens[cut:]))
            segments = [
                Segment(v, part, [-self.source.expovariate(1.2) for _ in part]) for v, part in chunks if part
            ]
            self.queue.append(group, trajectory, segments, Finish.STOP)
            self.queue.score(group, trajectory, self.judge(group, index, found, a + b), text)
        rewards = {name: s.reward for name, s in group.scores.items() if s.reward is not None}
        mean = sum(rewards.values()) / len(rewards)
        if len(set(rewards.values())) == 1:
            self.queue.drop(group, DropReason.NO_SIGNAL)
        else:
            self.queue.make_ready(group, {name: reward - mean for name, reward in rewards.items()})

    def judge(self, group: Group, index: int, found: int, wanted: int) -> Score:
        if group.group_id % 11 == 5 and index == 1:
            return Score("fault", None, None, None, FAULT, 0.002, trace=TRACE)
        score = float(found == wanted)
        detail = "equal to the reference" if score else f"{found} is not {wanted}"
        return Score("correct" if score else "wrong", score, score, str(found), detail, 0.001)

    def record(self, taken: list[Group], version: int) -> None:
        found = []
        for group in taken[:2]:
            for t in group.trajectories:
                if t.trajectory_id not in group.advantages:
                    continue
                logprobs = [p for segment in t.segments for p in segment.behavior_logprobs]
                ratios = [self.source.gauss(0, 0.12) * (1 - p) for p in logprobs]
                ratios[0] = math.nan
                entropies = [min(4.0, -0.8 * p + 0.1 * self.source.random()) for p in logprobs]
                found.append(TrainedTokens(t.trajectory_id, _halves(ratios), _halves(entropies)))
        self.queue.journal.write(*trained_tokens(found, version))

    def run(self) -> None:
        waiting: list[Group] = []
        for version in range(NUM_STEPS):
            self.queue.announce(version)
            while (taken := self.queue.take(version)) is None:
                while self.queue.can_admit():
                    waiting.append(self.queue.admit(self.task()))
                self.generate(waiting.pop(0), version)
            self.record(taken, version)
            self.queue.commit(version + 1, f"step-{version + 1}")
        self.queue.announce(NUM_STEPS - 1)
        self.queue.journal.barrier_blocking()


def _halves(values: list[float]) -> bytes:
    return struct.pack(f"<{len(values)}e", *values)


def write_browsed_run(folder: Path, name: str = "sums") -> Path:
    """The run folder, next to its model, in `folder`."""
    run = folder / name
    run.mkdir(parents=True)
    queue = make_queue(run, batch=BATCH, samples=SAMPLES, staleness=1, steps=NUM_STEPS)
    play = Play(queue)
    play.run()
    queue.journal.close()
    play.words.save(folder / "model")
    (run / "recipe.yaml").write_text(yaml.safe_dump({"name": name, "model": {"path": str(folder / "model")}}))
    with MetricsWriter(run / "metrics.jsonl", clock=lambda: 1_795_000_000.0) as metrics:
        warnings = WarningLog(metrics)
        for step in range(1, NUM_STEPS + 1):
            metrics.step({"step": step, "reward_mean": 0.1 * step, "num_tokens": 400.0})
            warnings.step = step
            for _ in range(40):
                warnings.add(
                    "server http://10.0.0.2:3000 retracted requests: its cache is full", kind="retracted"
                )
        warnings.add(f'no verdict of the verifier "./sums.py:Sums": {FAULT}', kind="no verdict")
        metrics.event(
            "alarm", alarm="entropy", step=5, text="entropy fell to 0.02 nats", value=0.02, limit=0.05
        )
        warnings.close()
    return run
