"""The tokens of one request, confirmed once the server says which weight version made them.

Versions come from the server's `weight_versions` spans alone: tokens without a span stay unconfirmed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from asyncrl.errors import ServerError
from asyncrl.records import Columns, PolicyVersion, Segment
from asyncrl.serving.sglang.messages import Chunk, ServedColumn


@dataclass(slots=True)
class Confirmation:
    """Turns the chunks of one request into segments as soon as the server says which version made them."""

    salt_version: PolicyVersion
    """The version the prefix cache of this request was salted with."""
    is_cache_recomputed: bool = False
    """Whether a publish discards all keys and values, those of running requests too (rollout.interrupt)."""
    columns: tuple[ServedColumn, ...] = ()
    """Columns that servers must send with the tokens."""
    num_context: int = 0
    """Positions in front of the first token, for which columns of the context must come too."""
    num_confirmed: int = 0
    pending_tokens: list[int] = field(default_factory=list)
    pending_logprobs: list[float] = field(default_factory=list)
    pending_columns: dict[str, list[bytes]] = field(default_factory=dict)

    def feed(self, chunk: Chunk) -> list[Segment]:
        """Segments confirmed by `chunk`. Raises ServerError when a chunk is missing, doubled or out of place,
        when its spans do not cover the tokens, or when a column is missing."""
        num_received = self.num_confirmed + len(self.pending_tokens) + len(chunk.tokens)
        # A chunk that was lost would move all later tokens to where they were not sampled.
        if chunk.num_tokens_so_far not in (None, num_received):
            raise ServerError(
                f"request {chunk.request_id}: {num_received} tokens arrived, the server sent "
                f"{chunk.num_tokens_so_far}"
            )
        for column in self.columns if chunk.tokens else ():
            self._check(column, chunk, is_first=num_received == len(chunk.tokens))
        if self._is_one_segment(chunk, num_received):
            return [self._segment(chunk, num_received)]
        for column in self.columns if chunk.tokens else ():
            self.pending_columns.setdefault(column.name, []).extend(chunk.columns[column.name])
        self.pending_tokens.extend(chunk.tokens)
        self.pending_logprobs.extend(chunk.behavior_logprobs)
        if chunk.spans is None or not self.pending_tokens:
            return []
        segments = []
        context = self._take_context()
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
                    columns=_joined(self.pending_columns, slice(first, last)),
                    context=context,
                )
            )
            context = {}
            position = end
        if position != total:
            raise ServerError(
                f"request {chunk.request_id}: version spans {chunk.spans} leave tokens "
                f"{position}..{total} open"
            )
        self.num_confirmed = total
        self.pending_tokens, self.pending_logprobs, self.pending_columns = [], [], {}
        return segments

    def _is_one_segment(self, chunk: Chunk, num_received: int) -> bool:
        """Whether its tokens, and no others, are of its last span: nearly all chunks are like that."""
        if not chunk.tokens or not chunk.spans or self.pending_tokens or self._num_context_left():
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
        columns = _joined({column.name: chunk.columns[column.name] for column in self.columns}, slice(None))
        return Segment(version, chunk.tokens, chunk.behavior_logprobs, used_old_cache, columns)

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

    def _num_context_left(self) -> int:
        """Positions in front of the tokens whose values are still to be confirmed, with the first segment."""
        has_context = any(column.is_of_context for column in self.columns)
        return self.num_context if has_context and self.num_confirmed == 0 else 0

    def _take_context(self) -> Columns:
        count = self._num_context_left()
        found = {}
        for column in self.columns:
            if column.is_of_context and count:
                values = self.pending_columns[column.name]
                found[column.name] = b"".join(values[:count])
                del values[:count]
        return found

    def _check(self, column: ServedColumn, chunk: Chunk, *, is_first: bool) -> None:
        wanted = len(chunk.tokens) + (self.num_context if is_first and column.is_of_context else 0)
        if (found := len(chunk.columns.get(column.name, []))) != wanted:
            raise ServerError(
                f"request {chunk.request_id}: {len(chunk.tokens)} tokens came with {found} {column.title}, "
                f"expected {wanted} {column.reason}"
            )

    def cut(self, segments: Sequence[Segment], num_tokens: int) -> list[Segment]:
        """The first `num_tokens` tokens of confirmed `segments`."""
        found = []
        first_of = {column.name: column.first for column in self.columns}
        for segment in segments:
            if num_tokens <= 0:
                break
            found.append(
                replace(
                    segment,
                    tokens=segment.tokens[:num_tokens],
                    behavior_logprobs=segment.behavior_logprobs[:num_tokens],
                    columns={
                        name: bytearray(first_of[name](bytes(values), num_tokens))
                        for name, values in segment.columns.items()
                    },
                )
            )
            num_tokens -= len(segment.tokens)
        return found


def _joined(columns: Mapping[str, Sequence[bytes]], part: slice) -> dict[str, bytearray]:
    """The values of a part of the tokens, as segments have them."""
    return {name: bytearray(b"".join(values[part])) for name, values in columns.items()}
