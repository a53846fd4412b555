"""Whether a run is done, as its folder tells."""

from pathlib import Path

from asyncrl.errors import InputError
from asyncrl.journal.queue_state import newest_commit
from asyncrl.journal.reader import find_journal
from asyncrl.observe.summary import JOURNAL_FILE


def is_complete(run_folder: Path, *, total_steps: int) -> bool:
    """Whether the last step is committed and exported, so that the same command finds nothing to train.

    False for a journal that cannot be read.
    """
    try:
        journal = find_journal(run_folder / JOURNAL_FILE)
    except InputError:
        return False
    if journal is None or newest_commit(journal) < total_steps:
        return False
    return any((run_folder / "checkpoints").glob("step-*/hf"))
