"""The machines that a run was trained on, as its starts recorded them."""

from collections.abc import Sequence

from asyncrl.journal.connection import Readable
from asyncrl.journal.environments import read_starts


def recorded_machines(journal: Readable) -> list[str]:
    """CPU, cores and GPUs of each machine that a start ran on; empty where the run recorded none."""
    found = [start.record.environment for start in read_starts(journal)]
    return list(dict.fromkeys(_words(each.cpu, each.num_cores, each.gpus) for each in found))


def _words(cpu: str, num_cores: int, gpus: Sequence[str]) -> str:
    held = [f"{gpus.count(name)} {name}" for name in dict.fromkeys(gpus)]
    return ", ".join([*held, f"{num_cores} cores of {cpu}"])
