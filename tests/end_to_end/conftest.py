"""One SGLang server for all runs that neither start nor kill one."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.base_model import write_base_model


@pytest.fixture(scope="session")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[str]]]:
    """The section `serving` of a run on a server that runs already, as on another machine.

    It serves any `WholeRun`. Each run brings it to its own weights, whatever the run before has left there.
    """
    from serving.engine.servers import running_server

    folder: Path = tmp_path_factory.mktemp("elsewhere")
    model = write_base_model(folder / "model")
    with running_server(model, folder / "log", max_total_tokens=8192, max_running_requests=64) as (url, _):
        yield {"servers": [url]}
