"""The owner of the servers' processes, without any: it remembers what was done to them."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field


async def at_once(url: str) -> str | None:
    """A restart or an end that succeeds at once."""
    return None


async def unexpected(url: str) -> str | None:
    """A restart of a server that did nothing wrong."""
    raise AssertionError(f"{url} did nothing wrong")


@dataclass
class FakeProcesses:
    on_restart: Callable[[str], Awaitable[str | None]] = unexpected
    on_stop: Callable[[str], Awaitable[object]] = at_once
    done: list[tuple[str, str]] = field(default_factory=list)
    """Calls so far, as ("restart" or "stop", URL), in order."""

    async def restart_server(self, url: str) -> str | None:
        now = await self.on_restart(url)
        self.done.append(("restart", url))
        return now

    async def end_server(self, url: str) -> None:
        await self.on_stop(url)
        self.done.append(("stop", url))
