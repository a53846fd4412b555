"""The interpreter of a session outside of a box: what it cuts, and what it changes in libraries."""

import os
import subprocess
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from sandbox.console import cut
from sandbox.running import Stream

ROOT = Path(__file__).parents[2]
_MARK = "characters were left out here"


@given(st.text(max_size=60), st.integers(1, 40))
def test_a_cut_text_keeps_its_head_and_its_tail(text, limit):
    found = cut(text, limit)
    if len(text) <= limit:
        assert found == text
    else:
        head, mark, tail = found.partition(f"\n[... {len(text) - limit} {_MARK} ...]\n")
        assert mark and text.startswith(head) and text.endswith(tail) and len(head) + len(tail) == limit


def test_a_plot_is_not_shown_and_numbers_are_seeded_however_they_are_imported(tmp_path):
    """With the real libraries."""
    program = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from sandbox.console import Imports
sys.meta_path.insert(0, Imports(7))
import matplotlib.pyplot as plt
plt.plot([1, 2])
try:
    plt.show()
except RuntimeError as error:
    print(error)
from numpy.random import rand
import numpy
print(rand() == numpy.random.RandomState(7).rand())
"""
    environment = {**os.environ, "MPLBACKEND": "Agg", "MPLCONFIGDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout == "no display: print numbers instead\nTrue\n"


def excerpt_of(chunks, limit):
    found = Stream(-1, (limit + 1) // 2, limit // 2)
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
    found = Stream(reading, 50, 50)
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
