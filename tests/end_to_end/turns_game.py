"""A game of three turns: each answer is a digit, and the end is right where the last turn has a seven."""

from asyncrl.turns import End, Observation


class Game:
    def start(self, row):
        self.num_turns = 0

    def step(self, text):
        self.num_turns += 1
        if self.num_turns == 3:
            return End(1.0 if "7" in text else 0.0, "three turns are over")
        return Observation(str(self.num_turns))
