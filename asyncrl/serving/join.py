"""How one rollout server comes to serve: it installs the latest publication, and its digests are compared."""

import logging
from dataclasses import dataclass

import aiohttp

from asyncrl.errors import ServerError, WeightMismatch
from asyncrl.loops import Waits
from asyncrl.model.unsampled import Unsampled
from asyncrl.records import PolicyVersion
from asyncrl.serving.publication import (
    INSTALL_SECONDS,
    Load,
    Publication,
    WeightOwner,
    install,
    load_from_disk,
)
from asyncrl.serving.server import ServerLifecycle, ServerState
from asyncrl.serving.sglang import control, health, hooks

log = logging.getLogger(__name__)

REPUBLISH_SECONDS = 30.0
"""Longest wait for a trainer that is not in a step to write a publication again."""
MAX_MISSED = 2
"""Joins that may be too late before the next batch waits for the one under way."""
SILENCE_SECONDS = 300.0
"""Longest silence of a server with requests, by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    max_running_requests: int
    """Most requests that run at once on a server."""
    install_seconds: float = INSTALL_SECONDS
    """Longest wait for the answer to each request of an install: a server that hangs then is restarted."""
    silence_seconds: float = SILENCE_SECONDS
    """A server with requests from which nothing comes for longer is restarted."""
    longest_tokens: int = 0
    """Tokens of the longest prompt with its response: a server whose cache is smaller does not join."""
    interrupt: str = "continue"
    """rollout.interrupt, for requests that run during an install."""
    load: Load = load_from_disk
    """How a server that joins is given its weights."""
    float32_head: bool | None = None
    """Whether servers compute the output layer of a bfloat16 model in float32; None: not asked."""
    is_bitwise: bool | None = None
    """Whether servers compute by the trainer's kernels (model.bitwise_agreement); None: not asked."""
    unsampled: Unsampled | None = None
    """A server that never samples other tokens than these does not join, where they are given."""
    top_k: int | None = None
    """Tokens that a server must be able to tell as kept (rollout.top_k); None where it is not asked."""
    returns_routes: bool = False
    """Whether servers must say which experts each token took (algorithm.routing_replay)."""


@dataclass
class Join:
    lifecycle: ServerLifecycle
    session: aiohttp.ClientSession
    waits: Waits
    weight_owner: WeightOwner
    settings: FleetSettings
    _is_installing: bool = False

    def is_late(self) -> bool:
        """Whether a publication is on its way to a server that was too late before."""
        return self._is_installing and self.lifecycle.num_missed >= MAX_MISSED

    async def run(self) -> None:
        """One attempt. The server serves when its digests are the published ones."""
        lifecycle, server, owner = self.lifecycle, self.lifecycle.server, self.weight_owner
        if lifecycle.fixed_version is not None and not owner.is_published():
            return await self._join_fixed(lifecycle.fixed_version)
        await self.waits.wait_until(
            lambda: owner.may_install(server.url) or server.state is not ServerState.STALE,
            owner=f"server {server.url}",
            blocker="the trainer's publication",
        )
        await owner.until_written(
            f"server {server.url}", unless=lambda: server.state is not ServerState.STALE
        )
        if server.state is not ServerState.STALE or not owner.may_install(server.url):
            return
        publication, was_asleep = owner.published(), server.is_asleep
        error = await self._try_install(publication)
        if server.state is not ServerState.STALE:
            return
        if error is not None:
            return await self._fail(publication, error)
        if not owner.is_latest(publication):
            # Another version was announced meanwhile: the loop joins again.
            lifecycle.num_missed += 1
            return
        lifecycle.joined(publication.version, was_asleep=was_asleep)

    async def _join_fixed(self, version: PolicyVersion) -> None:
        """Its process has loaded the weights itself, and no publication comes: its own word must do."""
        server = self.lifecycle.server
        label = await health.weight_version(self.session, server.url)
        if server.state is not ServerState.STALE:
            return
        if label != str(version):
            held = "does not answer" if label is None else f"holds weight version {label}, not {version}"
            return self.lifecycle.did_not_join(f"{server.url} {held}")
        self.lifecycle.joined_as_started()

    async def _try_install(self, publication: Publication) -> ServerError | None:
        url = self.lifecycle.server.url
        self._is_installing = True
        try:
            with self.waits.waiting(f"server {url}", f"the install of version {publication.version}"):
                if self.lifecycle.server.is_asleep:
                    # Before it is asked: without an answer it may hold memory.
                    self.lifecycle.server.is_asleep = False
                    await control.wake(self.session, url)
                await self._install(publication)
                await self._measure()
        except ServerError as error:
            return error
        finally:
            self._is_installing = False
            self.waits.notify()
        return None

    async def _install(self, publication: Publication) -> None:
        """The server must have the hooks that versions and digests come from. Raises ServerError."""
        url, settings = self.lifecycle.server.url, self.settings
        await hooks.check_hooks(
            self.session,
            url,
            unsampled=settings.unsampled,
            float32_head=settings.float32_head,
            is_bitwise=settings.is_bitwise,
            top_k=settings.top_k,
            returns_routes=settings.returns_routes,
        )
        await install(
            self.session,
            url,
            publication,
            interrupt=settings.interrupt,
            load=settings.load,
            timeout_seconds=settings.install_seconds,
        )

    async def _measure(self) -> None:
        """Reads what it takes at once. Raises ServerError where that is less than one trajectory needs."""
        url, longest_tokens = self.lifecycle.server.url, self.settings.longest_tokens
        found = await health.capacity(self.session, url)
        if not found.holds(longest_tokens):
            raise ServerError(
                f"{url} holds {found.cache_tokens} tokens in its cache, but a prompt and its response may "
                f"have {longest_tokens}. Raise serving.max_total_tokens or lower rollout.max_new_tokens."
            )
        self.lifecycle.server.capacity = found

    async def _fail(self, publication: Publication, error: ServerError) -> None:
        """Other bytes than were published: first the files are doubted, then the server, which is restarted.

        So is one whose files are not written again: at the end of a run there is no trainer any more.
        """
        lifecycle, server, owner = self.lifecycle, self.lifecycle.server, self.weight_owner
        server.reason = str(error)
        log.warning("server %s does not join: %s", server.url, error)
        if not isinstance(error, WeightMismatch) or lifecycle.num_mismatches > 0:
            return lifecycle.did_not_join(server.reason)
        lifecycle.num_mismatches += 1
        owner.ask_to_rewrite(publication)
        while owner.is_latest(publication) and server.state is ServerState.STALE:
            is_over = await self.waits.wait_until(
                lambda: not owner.is_latest(publication) or server.state is not ServerState.STALE,
                owner=f"server {server.url}",
                blocker="the trainer's publication, written again",
                timeout_seconds=REPUBLISH_SECONDS,
            )
            # In the middle of a step the trainer cannot answer; its next publication comes for certain.
            if not is_over and not owner.is_with_trainer:
                lifecycle.did_not_join(server.reason)
