"""Wire 2, trainer -> controller: the messages of `take`, `drain` and `commit`, as msgpack over HTTP.

Both sides import this module and nothing else of each other. Types are checked when a message is decoded.
"""

from dataclasses import dataclass, field, replace

import msgspec

from asyncrl.records import Batch, GradientSpike, PolicyVersion, PublishOutcome, ScoredSequence, TrainedTokens
from asyncrl.wire.columns import Columns, pack_sequences, unpack_sequences

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
    batch: Columns
    heldout_rows: Columns


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


@dataclass(frozen=True, slots=True)
class CommitReply:
    num_groups_trained: int
    """Groups that this commit moved from taken to trained; 0 when it repeats an earlier one."""
