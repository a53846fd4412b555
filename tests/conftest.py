"""What a test opens and leaves is closed after it: hundreds of tests in one process share one table."""

import contextlib
from collections.abc import Iterator

import pytest

from asyncrl.journal.writer import Journal, JournalError


@pytest.fixture(autouse=True)
def journals_are_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    opened: list[Journal] = []
    open_journal = Journal.__init__

    def remember(journal: Journal, *arguments: object, **named: object) -> None:
        open_journal(journal, *arguments, **named)  # type: ignore[arg-type]
        opened.append(journal)

    monkeypatch.setattr(Journal, "__init__", remember)
    yield
    for journal in opened:
        # One that failed says so again, also when it closes.
        with contextlib.suppress(JournalError):
            journal.close()
