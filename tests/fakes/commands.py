"""Commands as they are typed: their exit code is as expected, and this is what they printed."""

from dataclasses import dataclass

import pytest

from asyncrl.commands import main as cli


@dataclass(frozen=True)
class Printed:
    out: str
    err: str


@dataclass(frozen=True)
class Command:
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *words: object, code: int = 0) -> Printed:
        """The output of this command alone."""
        self.capsys.readouterr()
        found = cli.main([str(word) for word in words])
        printed = Printed(*self.capsys.readouterr())
        assert found == code, printed
        return printed
