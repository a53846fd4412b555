"""How one rollout server comes to serve: it installs the latest publication, and its digests are compared."""

import logging

import aiohttp

from asyncrl.errors import ServerError, WeightMismatch
from asyncrl.loops import Waits
from asyncrl.records import PolicyVersion
from asyncrl.serving.fleet_settings import FleetSettings
from asyncrl.serving.lifecycle import ServerLifecycle
from asyncrl.serving.publication import Publication, install
from asyncrl.serving.server import ServerState
from asyncrl.serving.sglang import control, health, hooks
from asyncrl.serving.weight_owner import WeightOwner

log = logging.getLogger(__name__)

REPUBLISH_SECONDS = 30.0
"""Longest wait for a trainer that is not in a step to write a publication again."""
MAX_MISSED = 2
"""Joins that may be too late before the next batch waits for the one under way."""


class Join:
    def __init__(
        self,
        lifecycle: ServerLifecycle,
        *,
        session: aiohttp.ClientSession,
        waits: Waits,
        weight_owner: WeightOwner,
        settings: FleetSettings,
    ) -> None:
        self._lifecycle = lifecycle
        self._server = lifecycle.server
        self._session = session
        self._waits = waits
        self._weight_owner = weight_owner
        self._settings = settings
        self._is_installing = False

    def is_late(self) -> bool:
        """Whether a publication is on its way to a server that was too late before."""
        return self._is_installing and self._lifecycle.num_missed >= MAX_MISSED

    async def run(self) -> None:
        """One attempt. The server serves when its digests are the published ones."""
        lifecycle, server, owner = self._lifecycle, self._server, self._weight_owner
        if lifecycle.fixed_version is not None and not owner.is_published():
            return await self._join_fixed(lifecycle.fixed_version)
        await self._waits.wait_until(
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
            return lifecycle.was_too_late()
        lifecycle.joined(publication.version, was_asleep=was_asleep)

    async def _join_fixed(self, version: PolicyVersion) -> None:
        """Its process has loaded the weights itself, and no publication comes: its own word must do."""
        server = self._server
        label = await health.weight_version(self._session, server.url)
        if server.state is not ServerState.STALE:
            return
        if label != str(version):
            held = "does not answer" if label is None else f"holds weight version {label}, not {version}"
            return self._lifecycle.did_not_join(f"{server.url} {held}")
        self._lifecycle.joined_as_started()

    async def _try_install(self, publication: Publication) -> ServerError | None:
        url = self._server.url
        self._is_installing = True
        try:
            with self._waits.waiting(f"server {url}", f"the install of version {publication.version}"):
                if self._server.is_asleep:
                    # Before it is asked: without an answer it may hold memory.
                    self._server.is_asleep = False
                    await control.wake(self._session, url)
                await self._install(publication)
                await self._measure()
        except ServerError as error:
            return error
        finally:
            self._is_installing = False
            self._waits.notify()
        return None

    async def _install(self, publication: Publication) -> None:
        """The server must have the hooks that versions and digests come from. Raises ServerError."""
        url, settings = self._server.url, self._settings
        await hooks.check_hooks(
            self._session,
            url,
            unsampled=settings.unsampled,
            float32_head=settings.float32_head,
            is_bitwise=settings.is_bitwise,
            top_k=settings.top_k,
            returns_routes=settings.returns_routes,
        )
        await install(
            self._session,
            url,
            publication,
            interrupt=settings.interrupt,
            load=settings.load,
            timeout_seconds=settings.install_seconds,
        )

    async def _measure(self) -> None:
        """Reads what it takes at once. Raises ServerError where that is less than one trajectory needs."""
        url, longest_tokens = self._server.url, self._settings.longest_tokens
        found = await health.capacity(self._session, url)
        if not found.holds(longest_tokens):
            raise ServerError(
                f"{url} holds {found.cache_tokens} tokens in its cache, but a prompt and its response may "
                f"have {longest_tokens}. Raise serving.max_total_tokens or lower rollout.max_new_tokens."
            )
        self._server.capacity = found

    async def _fail(self, publication: Publication, error: ServerError) -> None:
        """Other bytes than were published: first the files are doubted, then the server, which is restarted.

        So is one whose files are not written again: at the end of a run there is no trainer any more.
        """
        lifecycle, server, owner = self._lifecycle, self._server, self._weight_owner
        server.reason = str(error)
        log.warning("server %s does not join: %s", server.url, error)
        if not isinstance(error, WeightMismatch) or lifecycle.num_mismatches > 0:
            return lifecycle.did_not_join(server.reason)
        lifecycle.did_not_match()
        owner.ask_to_rewrite(publication)
        while owner.is_latest(publication) and server.state is ServerState.STALE:
            is_over = await self._waits.wait_until(
                lambda: not owner.is_latest(publication) or server.state is not ServerState.STALE,
                owner=f"server {server.url}",
                blocker="the trainer's publication, written again",
                timeout_seconds=REPUBLISH_SECONDS,
            )
            # In the middle of a step the trainer cannot answer; its next publication comes for certain.
            if not is_over and not owner.is_with_trainer:
                lifecycle.did_not_join(server.reason)
