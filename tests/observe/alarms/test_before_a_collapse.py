"""The alarm `effective_samples` comes before the collapse of real training runs, not of made-up columns."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_few_effective_sequences_are_told_before_the_reward_falls_to_half() -> None:
    command = [sys.executable, str(ROOT / "tests" / "benchmarks" / "collapse.py"), "--seeds", "0,1,2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=1700, cwd=ROOT, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(r"^\| (\d) \| [\d.]+ \| (\d+) \| (\d+) \| (\d+) \|$", done.stdout, re.MULTILINE)
    assert [seed for seed, *_ in rows] == ["0", "1", "2"], done.stdout
    for _, _, of_batches, of_samples in rows:
        # What the policy samples falls first; a step learns from it eight steps later.
        assert int(of_batches) >= int(of_samples) > 0, done.stdout
