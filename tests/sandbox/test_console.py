"""The interpreter of a session outside of a box: what it cuts, and what it changes in libraries."""

import os
import subprocess
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from sandbox.console import cut

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
