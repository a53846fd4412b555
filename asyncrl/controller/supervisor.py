"""The seam between a controller and the launcher that owns the processes around it."""

from dataclasses import dataclass
from typing import Any, Protocol

from asyncrl.serving.fleet import Fleet
from asyncrl.serving.server_process import ProcessOwner


class Supervisor(ProcessOwner, Protocol):
    """Starts and ends processes on the controller's word."""

    def kill_trainer(self, why: str) -> None:
        """Kills a trainer that hangs; `train` (see `Controller.run`) then starts another one."""
        ...

    def record_server_change(self, action: str, url: str) -> None:
        """Remembers "add" or "remove" for later starts of the run."""
        ...


@dataclass(frozen=True, slots=True)
class ServerMembership:
    """Adds and removes rollout servers when a person asks for it."""

    fleet: Fleet
    supervisor: Supervisor

    def change(self, action: str, url: str) -> list[dict[str, Any]]:
        """ "add" or "remove" `url`, or only "list"; what is known of each server. Raises ServerError."""
        rows = self.fleet.members.change_and_list(action, url)
        if action != "list":
            self.supervisor.record_server_change(action, url)
        return rows
