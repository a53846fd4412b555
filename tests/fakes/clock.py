"""A clock that moves when a test moves it."""

import dataclasses


@dataclasses.dataclass
class Clock:
    seconds: float = 0.0

    def __call__(self) -> float:
        return self.seconds
