"""The tokens of one request, confirmed once the server says which weight version made them.

Versions come from the server's `weight_versions` spans alone: tokens without a span stay unconfirmed.
"""

from dataclasses import dataclass, field

from asyncrl.errors import ServerError
from asyncrl.records import PolicyVersion, Segment
from asyncrl.serving.sglang.messages import Chunk


@dataclass(slots=True)
class Confirmation:
    """Turns the chunks of one request into segments as soon as the server says which version made them."""

    salt_version: PolicyVersion
    """The version the prefix cache of this request was salted with."""
    is_cache_recomputed: bool = False
    """Whether a publish discards all keys and values, those of running requests too (rollout.interrupt)."""
    is_truncated: bool = False
    """Whether servers must say which tokens each one was sampled from (top-p, top-k, min-p)."""
    row_bytes: int = 0
    """Bytes of the routes of a position, which servers must say (algorithm.routing_replay); 0: not asked."""
    num_context_rows: int = 0
    """Rows in front of those of the tokens."""
    num_confirmed: int = 0
    pending_tokens: list[int] = field(default_factory=list)
    pending_logprobs: list[float] = field(default_factory=list)
    pending_kept: list[bytes] = field(default_factory=list)
    pending_routes: bytearray = field(default_factory=bytearray)

    def feed(self, chunk: Chunk) -> list[Segment]:
        """Segments confirmed by `chunk`. Raises ServerError when a chunk is missing, doubled or out of place,
        when its spans do not cover the tokens, or when kept sets or routes are missing."""
        num_received = self.num_confirmed + len(self.pending_tokens) + len(chunk.tokens)
        # A chunk that was lost would move all later tokens to where they were not sampled.
        if chunk.num_tokens_so_far not in (None, num_received):
            raise ServerError(
                f"request {chunk.request_id}: {num_received} tokens arrived, the server sent "
                f"{chunk.num_tokens_so_far}"
            )
        if self.is_truncated and len(chunk.kept) != len(chunk.tokens):
            raise ServerError(
                f"request {chunk.request_id}: {len(chunk.tokens)} tokens came with {len(chunk.kept)} kept "
                f"sets (rollout.top_p, top_k, min_p): the trainer could not know their distribution"
            )
        if self._is_one_segment(chunk, num_received):
            return [self._segment(chunk, num_received)]
        if self.row_bytes and chunk.tokens:
            self._check_routes(chunk, is_first=num_received == len(chunk.tokens))
            self.pending_routes.extend(chunk.routes)
        self.pending_tokens.extend(chunk.tokens)
        self.pending_logprobs.extend(chunk.behavior_logprobs)
        self.pending_kept.extend(chunk.kept)
        if chunk.spans is None or not self.pending_tokens:
            return []
        segments = []
        context = b""
        if self.num_confirmed == 0:
            size = self.num_context_rows * self.row_bytes
            context, self.pending_routes = bytes(self.pending_routes[:size]), self.pending_routes[size:]
        position, total = self.num_confirmed, self.num_confirmed + len(self.pending_tokens)
        for index, span in enumerate(chunk.spans):
            end = min(span.end, total)
            if end <= position:
                continue
            if span.start > position:
                break
            first, last = position - self.num_confirmed, end - self.num_confirmed
            segments.append(
                Segment(
                    span.version,
                    self.pending_tokens[first:last],
                    self.pending_logprobs[first:last],
                    is_continued_in_place=self._may_use_old_cache(chunk, index),
                    kept=b"".join(self.pending_kept[first:last]),
                    routes=self.pending_routes[first * self.row_bytes : last * self.row_bytes],
                    context_routes=context,
                )
            )
            context = b""
            position = end
        if position != total:
            raise ServerError(
                f"request {chunk.request_id}: version spans {chunk.spans} leave tokens "
                f"{position}..{total} open"
            )
        self.num_confirmed = total
        self.pending_tokens, self.pending_logprobs, self.pending_kept = [], [], []
        self.pending_routes = bytearray()
        return segments

    def _is_one_segment(self, chunk: Chunk, num_received: int) -> bool:
        """Whether its tokens, and no others, are of its last span: nearly all chunks are like that."""
        if not chunk.tokens or not chunk.spans or self.pending_tokens or self.row_bytes:
            return False
        spans, is_covered = chunk.spans, chunk.spans[-1].start <= self.num_confirmed
        is_last = len(spans) == 1 or spans[-2].end <= self.num_confirmed
        return is_covered and is_last and spans[-1].end >= num_received

    def _segment(self, chunk: Chunk, num_received: int) -> Segment:
        """All tokens of `chunk`, which owns its lists no longer."""
        assert chunk.spans is not None
        self.num_confirmed = num_received
        version = chunk.spans[-1].version
        used_old_cache = self._may_use_old_cache(chunk, len(chunk.spans) - 1)
        kept = b"".join(chunk.kept) if chunk.kept else b""
        return Segment(version, chunk.tokens, chunk.behavior_logprobs, used_old_cache, kept)

    def _may_use_old_cache(self, chunk: Chunk, index: int) -> bool:
        """Whether the tokens of its span of that number may be sampled over keys, values or states of an
        older version.

        Also where the server found no token in its cache: SGLang puts a prompt that it has computed into the
        cache, and from then on uses what another one of the same salt put there before the publish.
        """
        assert chunk.spans is not None
        if self.is_cache_recomputed:
            return False
        return index > 0 or chunk.spans[index].version != self.salt_version

    def _check_routes(self, chunk: Chunk, *, is_first: bool) -> None:
        num_rows = len(chunk.tokens) + (self.num_context_rows if is_first else 0)
        if len(chunk.routes) != num_rows * self.row_bytes:
            raise ServerError(
                f"request {chunk.request_id}: {len(chunk.tokens)} tokens came with {len(chunk.routes)} bytes "
                f"of routes, expected {num_rows} rows of {self.row_bytes} (algorithm.routing_replay): the "
                f"trainer could not take the same experts"
            )
