"""Where the controller's service listens, and under which URL others reach it."""

from asyncrl.recipe.sections.cluster import LOOPBACK


class Endpoint:
    """Built before the parts that name its URL, which is known once the service listens."""

    def __init__(self, host: str = LOOPBACK, port: int = 0, *, advertised_host: str = "") -> None:
        """`port` 0 is any that is free. Others use `advertised_host` where that is not `host`."""
        self.host = host
        self.port = port
        self._advertised_host = advertised_host or host
        self._bound_port: int | None = None

    def listens_on(self, port: int) -> None:
        """The service has bound this port."""
        self._bound_port = port

    def url(self) -> str:
        assert self._bound_port is not None, "the service listens before its URL is used"
        return f"http://{self._advertised_host}:{self._bound_port}"
