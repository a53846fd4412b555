"""An environment of a chaos run, deterministic and slow: it says a digit, then the conversation is over and
the verifier judges."""

import os
import time
from pathlib import Path

from asyncrl.turns import End, Observation

AT_WORK = Path(__file__).with_name("at_work")
SECONDS = 0.1


class Game:
    def start(self, row):
        self.num_turns = 0

    def step(self, text):
        mark = AT_WORK / str(os.getpid())
        mark.touch()
        time.sleep(SECONDS)
        mark.unlink()
        self.num_turns += 1
        return End() if self.num_turns == 2 else Observation(str(len(text) % 10))
