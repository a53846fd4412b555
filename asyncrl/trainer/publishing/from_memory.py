"""Weights from the model's memory to all servers at once: each pipeline stage's first data-parallel rank
packs bucket after bucket and broadcasts it to one group with every tensor rank of every server.

While one bucket is on its way the next is gathered and packed, and the one that is sent is digested. Nothing
is read from disk. Tensors that no step changes (frozen ones, and all that `model.lora` gives no adapter) go
to a server once: a new group, as for another process, gets all of them. When a member of the groups fails,
those that still answer get the version once more without it, and it gets a group of its own, if it answers.
"""

import itertools
import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Unpack

import torch
import torch.distributed as dist
from torch import Tensor

from asyncrl.records import PolicyVersion, PublishOutcome
from asyncrl.serving.publication import Publication
from asyncrl.serving.sglang.hooks import Engine
from asyncrl.system.files import writing
from asyncrl.trainer.network.convert import export_stages
from asyncrl.trainer.network.export import drain
from asyncrl.trainer.network.model import Policy, PolicyModel
from asyncrl.trainer.network.model import device as find_device
from asyncrl.trainer.publishing.host_weights import HostWeights, digests_of
from asyncrl.trainer.publishing.publish import Publisher, Shared
from asyncrl.trainer.publishing.receivers import RankAssignment, Receivers
from asyncrl.trainer.ranks import ranks
from asyncrl.trainer.ranks.update_group import Address, UpdateGroup, backend_of, choose_address
from asyncrl.wire.access import Keys

log = logging.getLogger(__name__)

BROADCAST_SECONDS = 120.0
"""Longest wait for the servers to take a bucket."""
Outcomes = dict[str, PublishOutcome]


@dataclass(slots=True)
class _Sent:
    """This rank's result of a send: its part of the version's digests, and any error."""

    digests: dict[str, str] = field(default_factory=dict)
    error: str | None = None


class BroadcastPublisher(Publisher):
    """The weights come from the model's memory, and the folder is written in the background from a copy."""

    def __init__(self, folder: Path, *, bucket_bytes: int | None = None, **shared: Unpack[Shared]) -> None:
        """`bucket_bytes` is the recipe's serving.weight_bucket_bytes."""
        super().__init__(folder, **shared)
        self._memory = MemoryBroadcast(
            self._keys,
            bucket_bytes=bucket_bytes,
            interrupt=self._interrupt,
            timeout_seconds=self._timeout_seconds,
        )

    def prepare(self, version: PolicyVersion, model: Policy | PolicyModel) -> Publication:
        """Nothing is written before it is sent."""
        return Publication(version, self._folders.path(version), {})

    def close(self) -> None:
        super().close()
        self._memory.close()

    def _install(
        self, publication: Publication, model: Policy | PolicyModel, servers: Sequence[str]
    ) -> Outcomes:
        # It is written from the copies that the next version overwrites.
        self._folders.wait()
        if ranks.is_first():
            with writing(f"Publication v{publication.version}", self.folder):
                self._folders.fresh_part(publication.folder)
        outcomes = self._memory.send(publication, model, servers)
        self._folders.columns = {"publish_bytes": float(self._memory.host.num_bytes())}
        self._folders.begin(publication, self._memory.host)
        return outcomes


class MemoryBroadcast:
    """Kept for the whole run. Owns the groups and one copy of this rank's buckets in the CPU's memory, which
    is what the publication's folder is written from. A call of every rank unless it says otherwise."""

    def __init__(
        self, keys: Keys, *, bucket_bytes: int | None, interrupt: str, timeout_seconds: float
    ) -> None:
        """`timeout_seconds` (serving.request_timeout_seconds) bounds a server's part, and the wait for the
        first broadcast of a group to begin."""
        self._timeout_seconds = timeout_seconds
        self.host = HostWeights(bucket_bytes=bucket_bytes)
        """The version that its folder is written from. It changes with the next `send`."""
        self._receivers = (
            Receivers(keys, interrupt=interrupt, timeout_seconds=timeout_seconds)
            if ranks.is_first()
            else None
        )
        self._fixed: dict[int, dict[str, str]] = {}
        """Number of an own bucket that no step changes -> the digests of its tensors."""
        self._was_packed = False
        """Whether there is a copy of every bucket. The same on every rank."""
        self._group: UpdateGroup | None = None
        """Group of this rank's stage."""
        self._members: dict[str, Engine] = {}
        """Members of the groups, by URL; a restarted server is not one. The same on every rank."""
        self._addresses: dict[int, Address] = {}
        """Stage -> address of its group."""

    def send(self, publication: Publication, model: Policy | PolicyModel, servers: Sequence[str]) -> Outcomes:
        """Installs the version on all servers at once; on the first rank, server URL -> outcome.

        Fills the digests of `publication`; `host` has its weights afterwards.
        """
        self.host.make_plan(model)
        had_group = bool(self._members)
        outcomes, groups = self._send_round(publication, servers, model)
        if not had_group and len(servers) == 1:
            return outcomes
        while groups:
            members = groups.pop(0)
            log.warning("%d server(s) get version %d again", len(members), publication.version)
            found, smaller = self._send_round(publication, members, None)
            outcomes |= found
            self._leave()
            groups += smaller if len(members) > 1 else []
        return outcomes

    def close(self) -> None:
        """Closes this rank's part."""
        if self._receivers is not None:
            self._receivers.close()
        self._leave()

    def _send_round(
        self, publication: Publication, servers: Sequence[str], model: Policy | PolicyModel | None
    ) -> tuple[Outcomes, list[list[str]]]:
        """Outcomes, and the groups of servers that may take the version after all. Without a model the copies
        of the round before are sent."""
        members = ranks.first_alone(lambda: self._begin(publication, servers))
        sends_all = members != self._members or not self._was_packed
        error = self._join(members)
        # No name for the group here: its connections close with the last reference to it, and servers that
        # wait for a failed member fail with them.
        sent = self._send_buckets(
            model, self._group if members and error is None else None, sends_all=sends_all
        )
        self._was_packed = True
        everyone = ranks.gather(sent)
        for each in everyone:
            publication.digests.update(each.digests)
        error = error or next((each.error for each in everyone if each.error is not None), None)
        if error is not None:
            log.warning("version %d: sending weights failed: %s", publication.version, error)
            self._leave()
        outcomes, groups = ranks.first_alone(self._finish)
        if groups:
            self._leave()
        return outcomes, groups

    # The first rank, towards the servers

    def _begin(self, publication: Publication, servers: Sequence[str]) -> dict[str, Engine]:
        assert self._receivers is not None
        return self._receivers.begin(publication, servers, self.host.plan)

    def _finish(self) -> tuple[Outcomes, list[list[str]]]:
        assert self._receivers is not None
        self._receivers.digested()
        return self._receivers.finish()

    # Groups

    def _join(self, members: dict[str, Engine]) -> str | None:
        """Joins the servers that are ready to receive, unless they are in the groups already; why not."""
        if not members:
            return None
        is_new, num_ranks = members != self._members, [engine.num_ranks for engine in members.values()]
        own: dict[int, Address] = {}
        if is_new:
            self._leave()
            for stage in {bucket.stage for bucket in self.host.own().values()}:
                own[stage] = choose_address(f"weights-{uuid.uuid4().hex}", members)
            self._addresses = {stage: it for found in ranks.gather(own) for stage, it in found.items()}
        if self._receivers is not None:
            first = dict(zip(members, itertools.accumulate(num_ranks, initial=1), strict=False))
            backend = backend_of(find_device())
            assignment = RankAssignment(self._addresses, first, 1 + sum(num_ranks), backend, is_new)
            self._receivers.assign(assignment)
        error = None
        for address in own.values():
            try:
                self._group = UpdateGroup(address, sum(num_ranks), backend_of(find_device()))
            except RuntimeError as failure:
                error = f"no group with {', '.join(members)}: {failure}"
        error = next((each for each in ranks.gather(error) if each is not None), None)
        if error is None:
            self._members = members
        return error

    def _leave(self) -> None:
        """Leaves the groups: one may be stuck in the middle of a broadcast. Of one rank."""
        if self._group is not None:
            self._group.close()
        self._group, self._members = None, {}

    # Sending

    def _send_buckets(
        self, model: Policy | PolicyModel | None, group: UpdateGroup | None, *, sends_all: bool
    ) -> "_Sent":
        """Without a group the buckets are packed all the same, for the folder. `sends_all`: those that no
        step changes, too."""
        sent, work = _Sent(), None
        weights = None if model is None else export_stages(model, with_fixed=sends_all)
        for number, bucket in self.host.own().items():
            if bucket.is_fixed and not sends_all:
                sent.digests |= self._fixed[number]
                continue
            tensors = {} if weights is None else dict(itertools.islice(weights, len(bucket.tensors)))
            flat = self._packed(number, tensors)
            if group is not None and sent.error is None:
                sent.error = _wait(work) or self._connect(group, flat.device)
                work = group.send(flat) if sent.error is None else None
            # Of what the model holds, not of what was packed: a fault of packing shows, too.
            digests = digests_of(tensors)
            if bucket.is_fixed and digests:
                self._fixed[number] = digests
            sent.digests |= digests
        sent.error = sent.error or _wait(work)
        if weights is not None:
            # The parts that this rank has in what other ranks send.
            drain(weights)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return sent

    def _connect(self, group: UpdateGroup, device: torch.device) -> str | None:
        """Connects a group to its servers before the first bucket; returns the error, if any."""
        try:
            group.connect(device, timeout_seconds=self._timeout_seconds)
        except TimeoutError:
            return (
                f"the first broadcast to {', '.join(self._members)} did not begin within "
                f"{self._timeout_seconds:g} s (serving.request_timeout_seconds): a server hangs, or NCCL "
                f"cannot reach it"
            )
        except RuntimeError as error:
            return str(error).strip().splitlines()[0]
        return None

    def _packed(self, number: int, tensors: Mapping[str, Tensor]) -> Tensor:
        """The bytes of an own bucket on the model's device: of `tensors`, else of its copy."""
        bucket, device = self.host.plan[number], find_device()
        is_on_cpu = device.type == "cpu"
        copy = self.host.copy(number)
        flat = copy if is_on_cpu else torch.empty(bucket.num_bytes, dtype=torch.uint8, device=device)
        if not tensors:
            return flat if is_on_cpu else flat.copy_(copy)
        views = bucket.views(flat)
        assert views.keys() == tensors.keys(), "every rank exports in the order of the plan"
        for name, tensor in tensors.items():
            views[name].copy_(tensor)
        if not is_on_cpu:
            copy.copy_(flat, non_blocking=True)
        return flat


def _wait(work: dist.Work | None) -> str | None:
    """Waits for a bucket; returns the error, if any."""
    try:
        if work is not None:
            work.wait(timedelta(seconds=BROADCAST_SECONDS))
    except RuntimeError as error:
        return str(error).strip().splitlines()[0]
    return None
