"""What a run that ended on its own leaves behind."""

import logging
from pathlib import Path

from asyncrl.errors import ServerError
from asyncrl.observe.terminal.postmortem import NUM_EVENTS, NUM_LOG_LINES, RecentEvents, write_post_mortem


def test_a_post_mortem_holds_cause_waits_events_and_the_last_lines_of_each_log(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "server-0.log").write_text("\n".join(f"line {n}" for n in range(100)))
    with RecentEvents() as events:
        logging.getLogger("asyncrl.serving.fleet").warning("server %s leaves", "http://a")
        logging.getLogger("other").warning("not ours")
        events.add("checkpoint 3")
    path = write_post_mortem(
        tmp_path, ServerError("it died"), state={"What waited for what": "  take waits for x"}, events=events
    )
    text = path.read_text()
    assert "ServerError: it died" in text
    assert "What waited for what\n--------------------\n  take waits for x" in text
    assert "server http://a leaves" in text and "checkpoint 3" in text and "not ours" not in text
    assert f"line {100 - NUM_LOG_LINES}\n" in text and f"line {99 - NUM_LOG_LINES}\n" not in text


def test_only_the_last_events_are_kept() -> None:
    events = RecentEvents()
    for number in range(NUM_EVENTS + 5):
        events.add(f"event {number}")
    assert len(events.lines) == NUM_EVENTS and events.lines[0].endswith("event 5")
