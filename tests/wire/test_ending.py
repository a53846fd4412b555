"""How a rank tells its launcher why it ended."""

from hypothesis import given
from hypothesis import strategies as st

from asyncrl.errors import DiskError, Diverged
from asyncrl.wire.ending import Ending, ending_line, find_ending

TEXT = st.text(st.characters(codec="utf-8"))


@given(message=TEXT, before=TEXT, after=TEXT)
def test_whatever_an_error_says_it_comes_to_the_launcher_as_it_was(
    message: str, before: str, after: str
) -> None:
    line = ending_line(Diverged(message))
    assert line.endswith("\n") and len(line.splitlines()) == 1
    assert find_ending(before + line + after) == Ending("Diverged", message)


def test_the_last_whole_ending_counts() -> None:
    first, second = ending_line(Diverged("first")), ending_line(DiskError("second"))
    assert find_ending(first + second) == Ending("DiskError", "second")
    assert find_ending(first + second[:-5]) == Ending("Diverged", "first")
    assert find_ending("DiskError: a sentence alone. It resumes.\n") is None
