"""Wire 2, trainer -> controller: messages of `take`, `drain` and `commit`, as msgpack over HTTP, and the
trainer's client. Also the line of its log by which a trainer rank tells its launcher why it ends.

Both sides import this module and nothing else of each other. Types are checked when a message is decoded.
"""

import http.client
import json
import urllib.parse
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, pairwise
from typing import Any

import msgspec
import numpy as np

from asyncrl.errors import AsyncrlError, QueueError
from asyncrl.records import Batch, GradientSpike, PolicyVersion, PublishOutcome, ScoredSequence, TrainedTokens
from asyncrl.wire.access import bearer

# 4 bytes per token and 4 more per sampled one; policy versions are runs of equal ones. A message of lists has
# twice as many bytes, and each rank makes an object of each number: 67 million tokens take a minute.
CODES: dict[str, Any] = {
    "prompt_tokens": "i",
    "response_tokens": "i",
    "behavior_logprobs": "f",
}
"""Column -> type code of a memoryview. The loss takes log-probs in float32, and servers say them in it."""
RUN_CODES: dict[str, Any] = {"token_versions": "i", "are_continued": "?"}
"""Columns that are sent as runs of equal values."""
_KINDS = {"?": "b"}
"""The code in `array` and numpy where they have another."""
_EMPTY: dict[str, Any] = {name: [] for name in (*CODES, *RUN_CODES)} | {"columns": {}}


@dataclass(frozen=True, slots=True)
class SentSequences:
    """Sequences, taken apart. Numbers are in this machine's byte order: all of a run have the same."""

    rows: list[ScoredSequence]
    """Without what `values` holds."""
    lengths: dict[str, memoryview]
    """Column -> int64 of each row."""
    values: dict[str, memoryview]
    """Column -> the values of all rows, or the value of each run."""
    runs: dict[str, memoryview]
    """Column -> int64, the length of each run."""
    features: dict[str, tuple[memoryview, bytes]]
    """Name -> int64 number of bytes of each row, and the bytes of all rows, of `ScoredSequence.columns`."""


def pack_sequences(sequences: Sequence[ScoredSequence]) -> SentSequences:
    found = SentSequences([replace(sequence, **_EMPTY) for sequence in sequences], {}, {}, {}, {})
    for name, code in (CODES | RUN_CODES).items():
        parts = [getattr(sequence, name) for sequence in sequences]
        found.lengths[name] = _bytes(array("q", map(len, parts)))
        flat = array(_KINDS.get(code, code))
        for part in parts:
            flat.extend(array(flat.typecode, part))
        if name in RUN_CODES:
            values = np.asarray(flat)
            starts = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]])[: len(flat)])
            found.runs[name] = _bytes(np.diff(starts, append=len(flat)).astype(np.int64))
            found.values[name] = _bytes(values[starts])
        else:
            found.values[name] = _bytes(flat)
    for name in sorted({name for sequence in sequences for name in sequence.columns}):
        packed = [sequence.columns.get(name, b"") for sequence in sequences]
        found.features[name] = _bytes(array("q", map(len, packed))), b"".join(packed)
    return found


def unpack_sequences(columns: SentSequences) -> list[ScoredSequence]:
    """The packed sequences, with views of `columns` for lists."""
    parts: dict[str, list[Any]] = {}
    for name, code in (CODES | RUN_CODES).items():
        flat = columns.values[name]
        if name in RUN_CODES:
            values = np.frombuffer(flat, _KINDS.get(code, code))
            flat = _bytes(np.repeat(values, np.frombuffer(columns.runs[name], np.int64)))
        parts[name] = _cut(flat.cast(code), columns.lengths[name])
    of_rows: list[dict[str, bytes]] = [{} for _ in columns.rows]
    for name, (lengths, packed) in columns.features.items():
        for own, part in zip(of_rows, _cut(packed, lengths), strict=True):
            own |= {name: part} if part else {}
    return [
        replace(row, columns=named, **dict(zip(parts, own, strict=True)))
        for row, named, *own in zip(columns.rows, of_rows, *parts.values(), strict=True)
    ]


def _cut(flat: Any, lengths: memoryview) -> list[Any]:
    """The part of each row, one behind the other."""
    return [flat[first:end] for first, end in pairwise(chain([0], accumulate(lengths.cast("q"))))]


def _bytes(values: Any) -> memoryview:
    """The memory of an array, or of nothing."""
    return memoryview(values).cast("B") if len(values) else memoryview(b"")


TAKE_PATH = "/take"
DRAIN_PATH = "/drain"
COMMIT_PATH = "/commit"


@dataclass(frozen=True, slots=True)
class TakeRequest:
    """ "`version` is published; give me the batch to train it on." Idempotent per version."""

    version: PolicyVersion
    published: dict[str, PublishOutcome] = field(default_factory=dict)
    """Server URL -> outcome of publishing `version`."""
    publication_folder: str = ""
    """Holds the weights of `version` and their digests, for servers that join later: a path, or the URL
    where a trainer on another disk hands it out."""
    step_metrics: dict[str, float] | None = None
    """Metrics of the step that made `version`; None at the first take of a process."""
    trained_tokens: list[TrainedTokens] = field(default_factory=list)
    """Tokens of some groups of that step (view.groups_per_step)."""
    spike: GradientSpike | None = None
    """The row that made the gradient of that step, where its norm was far above the usual."""


@dataclass(frozen=True, slots=True)
class TakeReply:
    batch: Batch | None
    """None: the run is over or was asked to stop; save a checkpoint, commit and exit. Or `must_republish`."""
    servers: list[str] = field(default_factory=list)
    """Where the version that this batch makes is to be published."""
    heldout: dict[PolicyVersion, float] = field(default_factory=dict)
    """Version -> greedy held-out accuracy, of the evaluations that this controller has finished."""
    must_republish: bool = False
    """No batch yet: a server found other bytes in the publication than were published. Write it once more
    and take again."""
    own_servers: list[str] = field(default_factory=list)
    """Those of `servers` that are processes of the run, which are shown its token."""
    heldout_rows: list[ScoredSequence] = field(default_factory=list)
    """With the first batch of a process, in a stage that learns from rows: those whose loss is measured."""


@dataclass(frozen=True, slots=True)
class _SentReply:
    """A TakeReply as it is sent."""

    reply: TakeReply
    """Without sequences."""
    batch: SentSequences
    heldout_rows: SentSequences


def encode_take(reply: TakeReply) -> bytes:
    """Takes about a second for 50 million tokens."""
    batch = reply.batch
    plain = replace(reply, batch=None if batch is None else replace(batch, sequences=[]), heldout_rows=[])
    sequences = [] if batch is None else batch.sequences
    sent = _SentReply(plain, pack_sequences(sequences), pack_sequences(reply.heldout_rows))
    return msgspec.msgpack.encode(sent)


def decode_take(body: bytes | memoryview) -> TakeReply:
    """The columns of its batch are views of `body`. Raises msgspec.DecodeError, ValidationError."""
    sent = msgspec.msgpack.decode(body, type=_SentReply)
    batch, rows = sent.reply.batch, unpack_sequences(sent.heldout_rows)
    # These are kept, which must not keep the batch: views of a copy.
    rows = unpack_sequences(pack_sequences(rows))
    if batch is not None:
        batch = replace(batch, sequences=unpack_sequences(sent.batch))
    return replace(sent.reply, batch=batch, heldout_rows=rows)


@dataclass(frozen=True, slots=True)
class DrainRequest:
    """ "I am about to publish `version`; tell me when nothing is generated any more." Answered without a
    message; nothing is generated again until a take announces a version."""

    version: PolicyVersion


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """A durable checkpoint holds `version`: the batches that versions below it took are trained. Sent again
    when its folder has grown by an export."""

    version: PolicyVersion
    checkpoint_folder: str
    """A path, or a URL as for a publication."""


POLL_SECONDS = 20.0
"""The service answers "not yet" (204) after this long; the client asks again."""


class QueueClient:
    """Blocking calls to the queue service at `url`, which asks for the run's `token`. They outlive a restart
    of the service's socket. Not thread-safe.

    The watchdog of a long take is the controller, which answers "not yet" at least every POLL_SECONDS: so a
    dead controller is told from a slow rollout.
    """

    def __init__(self, url: str, *, token: str = "") -> None:
        self._headers = {"Content-Type": "application/msgpack", **bearer(token)}
        address = urllib.parse.urlsplit(url)
        self._connection = http.client.HTTPConnection(
            address.hostname or "127.0.0.1", address.port, timeout=3 * POLL_SECONDS
        )

    def take(self, request: TakeRequest) -> TakeReply:
        """The batch for `request.version`, however long it takes to be ready. Raises QueueError, OSError."""
        return decode_take(self.take_encoded(request))

    def take_encoded(self, request: TakeRequest) -> bytes:
        """As `take`, for `decode_take` of other processes too."""
        return self._asked(TAKE_PATH, request)

    def drain(self, request: DrainRequest) -> None:
        """Returns when nothing is generated any more, however long that takes. Raises QueueError, OSError."""
        self._asked(DRAIN_PATH, request)

    def commit(self, request: CommitRequest) -> None:
        """Tells the queue that a checkpoint is durable, however long a copy of it takes. Raises QueueError,
        OSError."""
        self._asked(COMMIT_PATH, request)

    def close(self) -> None:
        self._connection.close()

    def _asked(self, path: str, request: TakeRequest | DrainRequest | CommitRequest) -> bytes:
        """The answer to `request`, which is sent until there is one."""
        body = msgspec.msgpack.encode(request)
        while True:
            self._connection.request("POST", path, body, self._headers)
            response = self._connection.getresponse()
            answer = response.read()
            if response.status not in (200, 204):
                raise QueueError(f"{path} answered {response.status}: {answer.decode(errors='replace')}")
            if response.status == 200:
                return answer


_BEGINNING = '{"asyncrl":"ending"'


class Ending(msgspec.Struct, frozen=True, tag_field="asyncrl", tag="ending"):
    """The error that a rank ended with."""

    error: str
    """Name of its type."""
    message: str


def ending_line(error: AsyncrlError) -> str:
    """The line for the log, with its line break. In ASCII: Unicode has further line breaks."""
    ending = msgspec.to_builtins(Ending(type(error).__name__, str(error)))
    return json.dumps(ending, separators=(",", ":")) + "\n"


def find_ending(log: str) -> Ending | None:
    """The last ending in these lines of a log; None without a whole one."""
    for line in reversed(log.splitlines()):
        # Libraries leave lines without an end.
        begin = line.find(_BEGINNING)
        if begin < 0:
            continue
        try:
            return msgspec.json.decode(line[begin:], type=Ending)
        except msgspec.DecodeError:
            continue
    return None
