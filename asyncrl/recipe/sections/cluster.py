"""The section `cluster`."""

from typing import Annotated, Literal

from pydantic import Field

from asyncrl.recipe.sections.section import Section
from asyncrl.system.machine import outward_address

ANYWHERE = "0.0.0.0"
LOOPBACK = "127.0.0.1"


class Cluster(Section):
    """Where the processes of a run are, and how they reach each other."""

    backend: Literal["local", "ray"] = "local"
    """local: all processes on this machine, except for serving.servers.
    ray: on the nodes of a Ray cluster. A server's GPUs are on one node, trainer ranks as close together as
    they can be; what a lost node had starts on another one. Needs `make setup RAY=1`."""
    address: str = "auto"
    """Address of the Ray cluster. auto: the one that RAY_ADDRESS names, or that runs here. local: a new one
    on this machine, for this run. Or host:port of its head."""
    bind_address: str = LOOPBACK
    """Address that the controller's queue and the local servers listen on; with Ray the default is the node's
    address. 0.0.0.0: every network of the machine. Requests need the run's token, but nothing is encrypted:
    use a network that you trust."""
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Port of the controller, so that `asyncrl serve` finds it from elsewhere. 0: any that is free."""
    advertised_address: str | None = None
    """Name or address under which the other processes reach this machine.
    Default: bind_address, or for 0.0.0.0 the machine's address on the way to other networks."""
    shared_disk: bool = True
    """Whether every process sees the run folder and the base model under the same paths. false: servers fetch
    what they need of both over HTTP; a server that was started elsewhere needs asyncrl next to SGLang. With
    Ray all trainer ranks are on one node, and the controller copies each checkpoint from there."""

    open_metrics: bool = False
    """Whether GET /metrics of the controller, for Prometheus, answers without the run's token. It says how
    the run does and the addresses of its servers; nothing of prompts or responses."""

    def host(self) -> str:
        """Name or address under which others reach what listens on this machine."""
        if self.advertised_address is not None:
            return self.advertised_address
        return outward_address() if self.bind_address == ANYWHERE else self.bind_address
