"""The latest publication, and which side writes the weights of a server now: the trainer or its join.

The trainer does, from the reply to a take that named the server until it reports the outcome. So two
publications never mix on a server.
"""

from collections.abc import Callable, Iterable

from asyncrl.loops import Waits
from asyncrl.serving.publication import Publication, written


class WeightOwner:
    """The side that writes a server's weights: the trainer's publish or the server's join. One per fleet."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self._publication: Publication | None = None
        self._handed: set[str] = set()
        """URLs that the trainer was last told to publish to, until it reports the outcome."""
        self.is_with_trainer = False
        """The trainer has a batch: its next publication will come."""
        self.must_sleep = False
        """Servers fall asleep or sleep, because the trainer needs their GPUs for the batch that it gets."""
        self.wants_publication = False
        """A server loaded other bytes than were published. The files may be damaged: the trainer
        writes its weights again."""

    def is_published(self) -> bool:
        return self._publication is not None

    def published(self) -> Publication:
        """The version that was announced last."""
        assert self._publication is not None, "the trainer announces its version before anything else"
        return self._publication

    async def until_written(self, owner: str, *, unless: Callable[[], bool] = lambda: False) -> None:
        """Waits until the folder of the version that was announced last is complete, or `unless` is true."""
        while not unless() and not self.published().is_written():
            await self._look_for(self.published(), owner, unless)

    async def _look_for(self, publication: Publication, owner: str, unless: Callable[[], bool]) -> None:
        found = await written(
            publication,
            self._waits,
            owner=owner,
            unless=lambda: unless() or not self.is_latest(publication),
        )
        if self.is_latest(publication):
            self._publication = found

    def is_latest(self, publication: Publication) -> bool:
        return self._publication is publication

    def is_handed(self, url: str) -> bool:
        """Whether the trainer may be writing to this server."""
        return url in self._handed

    def may_start_process(self) -> bool:
        """Whether a server's process may take memory now."""
        return not (self.must_sleep and self.is_with_trainer)

    def may_install(self, url: str) -> bool:
        return self._publication is not None and url not in self._handed and not self.must_sleep

    def renew(self, publication: Publication) -> None:
        """The trainer has written a publication: servers join with this one from now on."""
        self._publication, self.wants_publication = publication, False
        self._waits.notify()

    def ask_to_rewrite(self, damaged: Publication) -> None:
        if self.is_latest(damaged):
            self.wants_publication = True
            self._waits.notify()

    def give(self, urls: Iterable[str]) -> None:
        """The trainer publishes to `urls` next."""
        self.is_with_trainer, self._handed = True, set(urls)

    def take_back(self) -> set[str]:
        """The trainer has reported, or another one came; the URLs that it was given."""
        handed, self._handed = self._handed, set()
        self.is_with_trainer = self.must_sleep = False
        self._waits.notify()
        return handed
