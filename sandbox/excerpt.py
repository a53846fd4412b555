"""The worker's end of a pipe from which any amount may come: keeps its head and its tail."""

import os

_CHUNK = 1 << 16
_MARK = "\n[... {} bytes were left out here ...]\n"


class Excerpt:
    """Like running.Stream, but never full."""

    overflowed = False

    def __init__(self, descriptor: int, limit: int) -> None:
        """`limit`: bytes to keep, half of them from the head."""
        self.descriptor = descriptor
        self.is_open = True
        self._head_size = (limit + 1) // 2
        self._tail_size = limit // 2
        self._head, self._tail, self._num_omitted = b"", b"", 0

    def read(self) -> None:
        """Takes what is there; notes the end."""
        try:
            chunk = os.read(self.descriptor, _CHUNK)
        except BlockingIOError:
            return
        if not chunk:
            self.is_open = False
            return
        self.add(chunk)

    def add(self, chunk: bytes) -> None:
        """Appends it, and drops what has come to lie in the middle."""
        room = self._head_size - len(self._head)
        self._head += chunk[:room]
        tail = self._tail + chunk[room:]
        dropped = max(0, len(tail) - self._tail_size)
        self._num_omitted += dropped
        self._tail = tail[dropped:]

    def close(self) -> None:
        """Gives the descriptor back; once."""
        self.is_open = False
        os.close(self.descriptor)

    def content(self) -> bytes:
        """All that was kept."""
        return self._head + self._tail

    def take(self) -> str:
        """All that was kept, with a mark where something was left out; the next excerpt begins."""
        head, tail, num_omitted = self._head, self._tail, self._num_omitted
        self._head, self._tail, self._num_omitted = b"", b"", 0
        if not num_omitted:
            return (head + tail).decode(errors="replace")
        # The cut may have halved a character on either side.
        before, after = head.decode(errors="replace"), tail.decode(errors="replace")
        return before.rstrip("\ufffd") + _MARK.format(num_omitted) + after.lstrip("\ufffd")
