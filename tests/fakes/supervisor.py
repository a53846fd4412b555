"""A supervisor without processes: it remembers what the controller asked of it."""


class FakeSupervisor:
    """A server that is restarted is ready at once."""

    def __init__(self) -> None:
        self.restarted: list[str] = []
        self.ended: list[str] = []
        self.trainer_kills: list[str] = []
        self.server_changes: list[tuple[str, str]] = []

    async def restart_server(self, url: str) -> None:
        self.restarted.append(url)

    async def end_server(self, url: str) -> None:
        self.ended.append(url)

    def kill_trainer(self, why: str) -> None:
        self.trainer_kills.append(why)

    def record_server_change(self, action: str, url: str) -> None:
        self.server_changes.append((action, url))
