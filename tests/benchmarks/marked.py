"""The part of a page that a program writes: between two marks."""

from pathlib import Path

from asyncrl.errors import InputError


def write_between(page: Path, begin: str, end: str, text: str) -> None:
    """Replaces what stands between the marks. Raises InputError where the page lacks one of them."""
    head, has_begin, rest = page.read_text(encoding="utf-8").partition(begin)
    _, has_end, tail = rest.partition(end)
    if not has_begin or not has_end:
        raise InputError(f"{page} lacks {begin.strip() if not has_begin else end.strip()!r}.")
    page.write_text(head + begin + text + end + tail, encoding="utf-8")
