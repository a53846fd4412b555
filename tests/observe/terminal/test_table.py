"""Numbers as people read them, and warnings on standard error."""

import subprocess
import sys

import pytest

from asyncrl.observe.terminal.table import (
    compact,
    duration,
    hundredths,
    percent_with_interval,
    sparkline,
    tiny_bar,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0.00"),
        (7.254, "7.25"),
        (31.23, "31.2"),
        (99.96, "100"),
        (999.6, "1.0k"),
        (4231, "4.2k"),
        (9_960, "10k"),
        (128_400, "128k"),
        (999_600, "1.0M"),
        (3_400_000, "3.4M"),
        (2_000_000_000, "2.0G"),
        (-4231, "-4.2k"),
    ],
)
def test_compact_numbers_take_five_characters_at_most(value: float | None, text: str) -> None:
    assert compact(value) == text
    assert len(text.lstrip("-")) <= 5


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.624, "0.62"),
        (1.0, "1.00"),
        (0.99999, "0.99"),
        (1.0001, "1.01"),
        (0.0, "0.00"),
        (0.0001, "0.01"),
        (-0.0001, "-0.01"),
        (-0.99999, "-0.99"),
        (12.3, "12.30"),
    ],
)
def test_two_decimals_say_a_whole_number_only_where_it_is_one(value: float, text: str) -> None:
    assert hundredths(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.04, "0.0 s"),
        (9.96, "10 s"),
        (42, "42 s"),
        (59.7, "1:00"),
        (95, "1:35"),
        (7500, "2:05:00"),
    ],
)
def test_durations_grow_from_seconds_to_hours(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_a_share_is_shown_with_its_interval_in_whole_percent() -> None:
    assert percent_with_interval(0.912, 0.874, 0.941) == "91% 87-94"
    assert percent_with_interval(0.912, None, None) == "91%"
    assert percent_with_interval(None, None, None) == "-"


def test_a_tiny_bar_fills_in_eighths_and_keeps_its_width() -> None:
    # 0.4 of 4 characters = 12.8 eighths, so 13: one full block and five eighths.
    assert tiny_bar(0.4, width=4, is_unicode=True) == "█▋  "
    assert tiny_bar(1.7, width=4, is_unicode=True) == "████"
    assert tiny_bar(-1.0, width=4, is_unicode=True) == "    "
    assert tiny_bar(0.5, width=4, is_unicode=False) == "##.."


def test_a_sparkline_spans_the_range_of_what_it_shows() -> None:
    assert sparkline([9.0, 0.0, 0.5, 1.0], width=3) == "▁▅█"
    assert sparkline([0.2, 0.2], width=4) == "▄▄  "
    assert sparkline([], width=2) == "  "


def test_warnings_are_shown_as_one_plain_message_that_steers_no_terminal() -> None:
    code = (
        "import logging\nfrom asyncrl.observe.terminal.table import warn_on_stderr\nwarn_on_stderr()\n"
        "log = logging.getLogger('asyncrl.rollout.fault_limit')\n"
        "log.info('hidden')\nlog.warning('no verdict: %s', '\\x1b[2J')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "no verdict: \\x1b[2J\n")
