"""An environment to copy: guess a number. Rows: {"prompt": "Guess a number from 1 to 100.", "answer": 37}."""

import re

from asyncrl.turns import End, Observation


class GuessingGame:
    def start(self, row):
        self.secret = int(row["answer"])

    def step(self, text):
        guesses = re.findall(r"[0-9]{1,9}", text)
        if not guesses:
            return Observation("Write a number.")
        guess = int(guesses[-1])
        if guess == self.secret:
            return End(1.0, extracted=str(guess))
        return Observation("higher" if guess < self.secret else "lower")
