"""Two ranks that write one checkpoint, of which one fails (a single process: test_checkpoint.py)."""

import json
import os
import signal
from pathlib import Path

from fakes.launch_trainer import finish_trainer
from fakes.models import write_model
from fakes.template import Template

from asyncrl.checkpoints import find_newest
from asyncrl.ports import free_ports


def test_what_one_rank_cannot_write_fails_on_all_and_the_checkpoint_before_stays(
    template: Template, tmp_path: Path
) -> None:
    folder, log = tmp_path / "checkpoints", tmp_path / "log"
    shared = {"model": str(write_model(tmp_path / "model")), "dtype": "float32", "written": str(folder)}
    saved = shared | {"parallel": {}}
    full = shared | {"parallel": {}, "read": str(folder), "fault": "full"}
    killed = full | {"fault": "killed"}
    environment = os.environ | {"WORLD_SIZE": "2", "MASTER_PORT": str(free_ports(1)[0])}

    def run(*cases: dict) -> list[int]:
        with log.open("ab") as output:
            ranks = [
                template.start(
                    "fakes.resharding_worker",
                    [json.dumps(cases)],
                    environment=environment | {"RANK": str(rank)},
                    output=output,
                )
                for rank in range(2)
            ]
        return finish_trainer(ranks, timeout_seconds=120)

    assert run(saved, full) == [0, 0], log.read_text()[-6000:]
    # Nothing of the third stays where there is no room.
    assert [path.name for path in folder.iterdir()] == ["step-2"]
    first, last = run(killed)
    assert last == -signal.SIGKILL and first == 1, log.read_text()[-6000:]
    assert "The one before it is intact" in log.read_text()
    assert find_newest(folder).version == 2 and find_newest(folder).faults == {}
