"""Load of each server's cache: tokens that the requests of a run hold, and will hold before they end.

A group shares its prompt on each server, however many connections it has there. Responses are expected to end
as those that ended lately (`ResponseLengths`).
"""

import itertools
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from asyncrl.records import Trajectory
from asyncrl.replay.group import Group
from asyncrl.rollout.request_rules import Limits
from asyncrl.serving.server import Server

# Short responses end first, so the ones that ended say little of a run that begins. A response that is longer
# than all but a few of them is therefore expected to become twice as long as it is.
WINDOW = 1024
"""Responses that are remembered."""
REFRESHED_EVERY = 32
"""Responses that may end before they count."""
FEW = 8
"""Longer responses than these are needed for a mean."""
ASSUMED_SHARE = 0.25
"""Assumed share of the limit, where nothing ended yet."""


class ResponseLengths:
    def __init__(self) -> None:
        self._recent: deque[int] = deque(maxlen=WINDOW)
        self._sorted: list[int] = []
        self._sums: list[int] = []
        """For each length in `_sorted`, the sum of it and all longer ones."""
        self._num_new = 0

    def add(self, num_tokens: int) -> None:
        """Counts a response that ended, by its length in tokens."""
        self._recent.append(num_tokens)
        self._num_new += 1
        if self._num_new >= REFRESHED_EVERY or len(self._recent) <= REFRESHED_EVERY:
            self._num_new = 0
            self._sorted = sorted(self._recent)
            self._sums = list(itertools.accumulate(reversed(self._sorted)))[::-1]

    def expected(self, num_tokens: int, *, limit_tokens: int) -> int:
        """Tokens at its end of a response that has `num_tokens` and may have `limit_tokens`."""
        first = bisect_right(self._sorted, num_tokens)
        num_longer = len(self._sorted) - first
        if num_longer >= FEW:
            tokens = round(self._sums[first] / num_longer)
        elif num_tokens:
            tokens = 2 * num_tokens
        else:
            tokens = round(ASSUMED_SHARE * limit_tokens)
        return min(max(tokens, num_tokens + 1), limit_tokens)


@dataclass(slots=True)
class Held:
    """Response tokens of one request in its server's cache."""

    num_before: int
    """In front of its turn."""
    num_held: int
    """As far as they have arrived."""
    num_expected: int
    """At its end."""


@dataclass
class ExpectedLoad:
    limits: Limits
    lengths: ResponseLengths = field(default_factory=ResponseLengths)
    _num_on: dict[tuple[Server, int, int], int] = field(default_factory=dict)
    """(server, group, tokens of the prompt) -> connections."""

    def begin(self, server: Server, group: Group, num_prompt_tokens: int, requests: Sequence[Held]) -> None:
        self._expect_prompt(server, group, num_prompt_tokens, 1)
        for held in requests:
            server.expect(held.num_expected, held=held.num_held)

    def grow(self, server: Server, trajectory: Trajectory, held: Held, num_new: int) -> None:
        """New tokens of a request, and what they say of how many will come."""
        held.num_held += num_new
        before = held.num_expected
        if held.num_held > before:
            # Over a round's end by nothing: it ends there.
            limit = max(held.num_held, self.limits.limit_tokens(trajectory))
            held.num_expected = self._at_end(held.num_before, held.num_held, limit)
        server.expect(held.num_expected - before, held=num_new)

    def end(self, server: Server, held: Held) -> None:
        server.expect(-held.num_expected, held=-held.num_held)

    def end_prompt(self, server: Server, group: Group, num_prompt_tokens: int) -> None:
        """A connection of the group has ended."""
        self._expect_prompt(server, group, num_prompt_tokens, -1)

    def held_by(self, trajectory: Trajectory) -> Held:
        """Tokens that its next request holds as it begins."""
        num_tokens = trajectory.num_response_tokens()
        return Held(num_tokens - trajectory.num_turn_tokens(), num_tokens, self._length(trajectory))

    def tokens(self, group: Group, pending: Sequence[Trajectory]) -> int:
        """Cache tokens that trajectories of a group will hold; they share their prompt."""
        prompt = num_prompt_tokens(pending) if pending else len(group.task.prompt_tokens)
        return prompt + sum(map(self._length, pending))

    def tokens_of_new_group(self, num_trajectories: int) -> int:
        """The same for a group without a task yet."""
        return num_trajectories * self.lengths.expected(0, limit_tokens=self.limits.limit_of_new())

    def _length(self, trajectory: Trajectory) -> int:
        """Response tokens at the end of its next request."""
        num_tokens, limit = trajectory.num_response_tokens(), self.limits.limit_tokens(trajectory)
        num_before = num_tokens - trajectory.num_turn_tokens()
        return self._at_end(num_before, num_tokens, self.limits.limit_of_request(num_tokens, limit))

    def _at_end(self, num_before: int, num_tokens: int, limit: int) -> int:
        """Response tokens at the end of a turn, of which there are `num_tokens`, `num_before` in front of it:
        observed ones are known, and the turn ends as turns ended lately."""
        return num_before + self.lengths.expected(num_tokens - num_before, limit_tokens=limit - num_before)

    def _expect_prompt(self, server: Server, group: Group, num_tokens: int, change: int) -> None:
        key = (server, group.group_id, num_tokens)
        before = self._num_on.get(key, 0)
        self._num_on[key] = before + change
        if not self._num_on[key]:
            del self._num_on[key]
        if 0 in (before, before + change):
            server.expect(change * num_tokens, held=change * num_tokens)


def num_prompt_tokens(lines: Sequence[Trajectory]) -> int:
    """Cache tokens of their prompts: a prompt that several begin with is held once."""
    return sum(map(len, {line.prompt_tokens for line in lines}))
