"""Version spans hold on schedules other than the default, several steps ahead."""

from pathlib import Path

from serving.engine.servers import said_beside_engine

SCRIPT = Path(__file__).with_name("schedules_ahead.py")


def test_every_pending_token_has_the_old_version(tmp_path: Path) -> None:
    assert said_beside_engine(SCRIPT, tmp_path) == [
        # 5 tokens, 2 steps pending: 7 of version 1
        "ahead 1:0-7 2:7-8",
        "beside 1:0-3 2:3-5",
        "new 1:0-1 2:1-3",
    ]
