"""One SGLang server for all runs that neither start nor kill one. A run ends with its test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.base_model import write_base_model
from fakes.whole_run import WholeRun


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


@pytest.fixture(autouse=True)
def runs_are_ended(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """That of a test that failed would train on beside the next tests."""
    started: list[WholeRun] = []
    start = WholeRun.start

    def remember(run: WholeRun) -> WholeRun:
        started.append(run)
        return start(run)

    monkeypatch.setattr(WholeRun, "start", remember)
    yield
    for run in started:
        if run.process is not None and run.process.poll() is None:
            # Its children die with it.
            run.kill()
            run.process.wait()
