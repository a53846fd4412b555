"""What a server's chunks of tokens say of its decode steps."""

import pytest

from asyncrl.serving.chunk_sums import ChunkSums
from asyncrl.serving.server import Server


def test_a_chunk_counts_its_seconds_and_the_requests_that_ran_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr("asyncrl.serving.server.now_seconds", lambda: now)
    monkeypatch.setattr("asyncrl.serving.pulse.now_seconds", lambda: now)
    server = Server("http://one")
    server.begin(2)
    now = 103.0
    # The first chunk of a request waited for its prompt: it only opens the next.
    opened = server.count_chunk(4, None)
    assert server.chunks == ChunkSums() and server.num_tokens == 4
    now = 104.0
    server.begin(4)
    now = 107.0
    opened = server.count_chunk(8, opened)
    # 8 tokens in 4 s: 1 s beside one other request, 3 s among six.
    assert server.chunks == ChunkSums(8.0, 4.0, 8 * (2 * 1.0 + 6 * 3.0) / 4.0)
    # Two chunks of a request that arrive at once are one moment: nothing can be said of the second.
    server.count_chunk(1, opened)
    assert server.chunks.tokens == 8.0 and server.num_tokens == 13
    now = 109.0
    server.count_chunk(2, opened)
    assert server.chunks == ChunkSums(10.0, 6.0, 8 * 5.0 + 2 * 6.0)
