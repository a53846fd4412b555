"""A published policy version: a folder of weights with digests, and how one server comes to serve it.

The trainer writes publications and installs them after each step; the controller installs the latest one on
a server that joins later. A server serves only what was compared with the trainer's own digests. No torch.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from asyncrl.errors import ServerError, WeightMismatch
from asyncrl.types import PolicyVersion

PAUSE_MODES = {"continue": "in_place", "retract": "retract", "abort": "abort"}
"""rollout.interrupt -> what SGLang calls it."""
MANIFEST = "publication.json"
INSTALL_SECONDS = 300.0
"""Longest wait for a server's answer to one request of an install."""


@dataclass(frozen=True, slots=True)
class Publication:
    """One policy version on disk, readable by every server."""

    version: PolicyVersion
    folder: Path
    digests: dict[str, str]
    """Engine parameter name (fused, as SGLang names it) -> 16 hex digits of the bytes' SHA-256."""

    def write_manifest(self) -> None:
        """Written last and renamed into place: a folder with a manifest is complete."""
        temporary = self.folder / f"{MANIFEST}.part"
        temporary.write_text(json.dumps({"version": self.version, "digests": self.digests}))
        os.replace(temporary, self.folder / MANIFEST)


def read_publication(folder: Path) -> Publication:
    """The publication in `folder`. Raises FileNotFoundError when it is not complete."""
    manifest = json.loads((folder / MANIFEST).read_text())
    return Publication(manifest["version"], folder, manifest["digests"])


async def install(
    session: aiohttp.ClientSession,
    url: str,
    publication: Publication,
    *,
    interrupt: str = "continue",
    timeout_seconds: float = INSTALL_SECONDS,
) -> None:
    """Makes the server at `url` serve `publication`, running requests included, and verifies what it loaded.

    `interrupt` (a key of PAUSE_MODES) says what becomes of running requests meanwhile.
    Raises ServerError, also when one of its answers takes longer than `timeout_seconds`, and WeightMismatch
    when the loaded bytes differ; the server then stays paused, because a token sampled from unknown weights
    would be worse than none.
    """
    timeout = aiohttp.ClientTimeout(total=timeout_seconds)
    await _post(session, url, "/pause_generation", {"mode": PAUSE_MODES[interrupt]}, timeout)
    await _post(
        session,
        url,
        "/update_weights_from_disk",
        {
            "model_path": str(publication.folder),
            "weight_version": str(publication.version),
            # Refused while requests run in place; prefix caches are salted by version instead. A retracted
            # request would find the keys and values of its own salt again, so there it is necessary.
            "flush_cache": interrupt == "retract",
        },
        timeout,
    )
    reply = await _post(session, url, "/weights_checker", {"action": "checksum"}, timeout)
    compare_digests(url, publication, reply)
    await _post(session, url, "/continue_generation", {"torch_empty_cache": False}, timeout)


def compare_digests(url: str, publication: Publication, reply: object) -> None:
    """Raises WeightMismatch unless every digest the server reports is the published one."""
    try:
        ranks = [rank["checksums"] for rank in reply["ranks"]]  # type: ignore[index]
    except (KeyError, TypeError):
        raise ServerError(
            f"{url}/weights_checker answered {str(reply)[:200]!r}, expected ranks of checksums"
        ) from None
    if len(ranks) != 1:
        raise ServerError(
            f"{url} has {len(ranks)} tensor-parallel ranks; digests are compared for one rank only."
        )
    loaded, published = ranks[0], publication.digests
    wrong = sorted(
        name for name in loaded.keys() | published.keys() if loaded.get(name) != published.get(name)
    )
    if wrong:
        name = wrong[0]
        raise WeightMismatch(
            f"{url} does not hold version {publication.version}: {len(wrong)} of {len(published)} tensors "
            f"differ, first {name} (server {loaded.get(name)}, trainer {published.get(name)}). It serves "
            f"nothing "
            f"until its weights are verified."
        )


async def _post(
    session: aiohttp.ClientSession,
    url: str,
    path: str,
    body: dict[str, object],
    timeout: aiohttp.ClientTimeout,
) -> object:
    try:
        async with session.post(f"{url}{path}", json=body, timeout=timeout) as response:
            answer = await response.json(content_type=None)
    except (aiohttp.ClientError, TimeoutError, ValueError, OSError) as error:
        raise ServerError(f"{url}{path} failed: {type(error).__name__}: {error}") from error
    if response.status != 200:
        raise ServerError(f"{url}{path} answered {response.status}: {str(answer)[:300]}")
    return answer
