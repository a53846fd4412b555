"""Version spans hold on schedules other than the default, several steps ahead."""

import os
import subprocess
import sys
from pathlib import Path

from asyncrl.serving.engine.environment import engine_environment

SCRIPT = Path(__file__).with_name("schedules_ahead.py")


def test_every_pending_token_has_the_old_version() -> None:
    environment = os.environ | engine_environment(threads=1, has_gpu=False)
    run = subprocess.run([sys.executable, SCRIPT], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.splitlines() == [
        # 5 tokens, 2 steps pending: 7 of version 1
        "ahead 1:0-7 2:7-8",
        "beside 1:0-3 2:3-5",
        "new 1:0-1 2:1-3",
    ]
