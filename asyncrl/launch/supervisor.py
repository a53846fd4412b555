"""The processes of a run on this machine, as its controller reaches them."""

from asyncrl.journal.server_changes import record_change
from asyncrl.journal.writer import Journal
from asyncrl.launch.servers import LocalServers
from asyncrl.launch.trainers import TrainerRanks
from asyncrl.recipe import Recipe


class LocalSupervisor:
    """Hands each request to the servers, the trainer or the journal."""

    def __init__(
        self, recipe: Recipe, servers: LocalServers, trainers: TrainerRanks, journal: Journal
    ) -> None:
        self._recipe = recipe
        self._servers = servers
        self._trainers = trainers
        self._journal = journal

    async def restart_server(self, url: str) -> str:
        return await self._servers.restart(url)

    async def end_server(self, url: str) -> None:
        await self._servers.end(url)

    def kill_trainer(self, why: str) -> None:
        self._trainers.kill(why)

    def record_server_change(self, action: str, url: str) -> None:
        record_change(
            self._journal,
            action,
            url,
            is_local=url in self._servers.processes,
            serving=self._recipe.serving,
        )
