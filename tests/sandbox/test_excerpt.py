"""Head and tail of what comes through a pipe."""

import os

from hypothesis import given
from hypothesis import strategies as st

from sandbox.excerpt import Excerpt


def excerpt_of(chunks, limit):
    found = Excerpt(-1, limit)
    for chunk in chunks:
        found.add(chunk)
    return found.take()


def test_what_fits_is_kept_whole_and_of_more_the_middle_is_left_out():
    assert excerpt_of([b"abc", b"def"], 6) == "abcdef"
    assert excerpt_of([b"abcd", b"efgh"], 6) == "abc\n[... 2 bytes were left out here ...]\nfgh"
    assert excerpt_of([b"abcd"], 1) == "a\n[... 3 bytes were left out here ...]\n"


def test_a_cut_leaves_no_half_of_a_character():
    assert excerpt_of(["äöü".encode()], 4) == "ä\n[... 2 bytes were left out here ...]\nü"
    assert "\ufffd" not in excerpt_of([("€" * 50).encode()], 20)


@given(st.lists(st.binary(max_size=40).map(lambda part: part.hex().encode())), st.integers(1, 60))
def test_however_it_comes_the_excerpt_is_that_of_the_whole(chunks, limit):
    whole = b"".join(chunks)
    found = excerpt_of(chunks, limit)
    assert found == excerpt_of([whole], limit)
    left_out = max(0, len(whole) - limit)
    assert (f"[... {left_out} bytes were left out here ...]" in found) == (left_out > 0)
    assert len(found) <= limit + 50


def test_each_excerpt_begins_where_the_last_one_was_taken():
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    found = Excerpt(reading, 100)
    os.write(writing, b"first")
    found.read()
    assert found.take() == "first"
    found.read()
    assert found.take() == "" and found.is_open
    os.write(writing, b"second")
    os.close(writing)
    found.read()
    found.read()
    assert found.content() == b"second" and not found.is_open
    found.close()
