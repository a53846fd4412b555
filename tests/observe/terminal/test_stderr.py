"""Warnings of a command on standard error."""

import subprocess
import sys


def test_warnings_are_shown_as_one_plain_message_that_steers_no_terminal() -> None:
    code = (
        "import logging\nfrom asyncrl.observe.terminal.table import warn_on_stderr\nwarn_on_stderr()\n"
        "log = logging.getLogger('asyncrl.rollout.fault_limit')\n"
        "log.info('hidden')\nlog.warning('no verdict: %s', '\\x1b[2J')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "no verdict: \\x1b[2J\n")
