"""Hostile programs, each in every kind of box that this machine offers: none reaches anything of the host."""

import pytest


def test_a_hostile_program_reaches_nothing(box, canaries, hostile_results, hostile_program):
    program = hostile_program
    if program.tiers and box.tier.value not in program.tiers:
        pytest.skip(f"the tier {box.tier.value} does not promise this; {', '.join(program.tiers)} does")

    result, after = hostile_results[program.name]

    source = canaries.fill_in(program.source).encode()
    assert b"ESCAPED" not in result.stdout, result
    assert canaries.secret.encode() not in result.stdout + result.stderr.replace(source, b""), result
    assert len(result.stdout) <= program.limits.output_bytes
    # Ended by its limit; on a busy machine the watcher too has to wait for a core.
    assert result.wall_seconds < program.limits.wall_seconds + 20
    assert result.tier is box.tier
    if program.statuses:
        assert result.status.value in program.statuses, result
    # And the next run is as if it had never been.
    assert (after.status.value, after.stdout) == ("ok", b"[1, 2] 3\n"), after


def test_the_hosts_canaries_are_untouched_by_all_hostile_programs(box, canaries, hostile_results):
    canaries.assert_untouched()


def test_the_canaries_notice_an_escape(canaries, tmp_path):
    """The check can fail: an unconfined process is seen."""
    import socket

    caller = socket.create_connection(("127.0.0.1", canaries.port))
    with pytest.raises(pytest.fail.Exception):
        canaries.assert_untouched()
    # The failed check has accepted the connection; take what is left of it away.
    caller.close()
    (canaries.folder / "daemon").write_text("alive")
    with pytest.raises(AssertionError):
        canaries.assert_untouched()
    (canaries.folder / "daemon").unlink()
