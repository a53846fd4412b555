"""On which machines a run was trained, as its starts recorded them."""

import json

from asyncrl.journal.connection import Readable

_TABLE = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'environments'"
_RECORDS = "SELECT environment FROM environments ORDER BY started_seconds"
_PARTS = ("cpu", "num_cores", "gpus")


def recorded_machines(journal: Readable) -> list[str]:
    """CPU, cores and GPUs of each machine that a start ran on; empty where the run recorded none."""
    ((is_recorded,),) = journal.read(_TABLE)
    if not is_recorded:
        return []
    found = [json.loads(text).get("environment", {}) for (text,) in journal.read(_RECORDS)]
    return list(dict.fromkeys(_words(*(environment.get(part) for part in _PARTS)) for environment in found))


def _words(cpu: str | None, num_cores: int | None, gpus: list[str] | None) -> str:
    names = gpus or []
    held = [f"{names.count(name)} {name}" for name in dict.fromkeys(names)]
    return ", ".join([*held, f"{num_cores or 'unknown'} cores of {cpu or 'an unknown CPU'}"])
