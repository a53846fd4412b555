"""The seam between code that has untrusted programs and code that can run them."""

from typing import Protocol

from sandbox.command import Command
from sandbox.limits import Limits
from sandbox.result import Result


class Sandbox(Protocol):
    """Runs untrusted programs. Every method raises SandboxError when the sandbox itself fails."""

    async def build(
        self, source: str | bytes, *, lang: str, limits: Limits, fresh: bool = False
    ) -> Command | Result:
        """The command that runs this program, compiled where its language is; the compiler's Result when that
        refuses the program. `fresh` starts a new interpreter for each run of a Python program.

        Raises ValueError for an unknown language."""
        ...

    async def run(self, command: Command) -> Result:
        """One run, from a clean box to the end of everything it started."""
        ...

    async def run_linked(self, program: Command, judge: Command) -> tuple[Result, Result]:
        """Two boxes that share nothing but a stream socket, descriptor 3 in both; the program
        ends with the judge."""
        ...
