"""What several files of real servers share."""

from pathlib import Path

import pytest
from serving.engine.servers import said_beside_engine

from asyncrl.trainer.ranks.megatron import import_megatron

# Tests here import Megatron: not with all that it would take along.
import_megatron()

COMPARE = Path(__file__).with_name("compare.py")


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[str]]]:
    """Name of a comparison -> the words of each line that it prints."""
    found: dict[str, list[list[str]]] = {}
    for line in said_beside_engine(COMPARE, tmp_path_factory.mktemp("compare")):
        name, *words = line.split()
        if words:
            list(found.values())[-1].append([name, *words])
        else:
            found[name] = []
    return found
