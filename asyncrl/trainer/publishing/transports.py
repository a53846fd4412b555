"""The way of a recipe's versions to its servers: a folder, on disk or in memory, deltas, or a broadcast."""

from collections.abc import Callable
from pathlib import Path
from typing import Unpack

from asyncrl.model.dtype import find_dtype
from asyncrl.model.folder import read_shape
from asyncrl.model.source import model_folder
from asyncrl.recipe import Recipe
from asyncrl.serving.publication import Load, find_load, load_from_disk
from asyncrl.system.places import PUBLICATIONS
from asyncrl.trainer.publishing.encodings import DeltaFolders, LoadDeltas, MemoryFolders
from asyncrl.trainer.publishing.from_memory import BroadcastPublisher
from asyncrl.trainer.publishing.publish import Encoded, Encoding, PublicationFolders, Publisher, Shared
from asyncrl.wire.access import own_token, read_keys


def make_publisher(
    recipe: Recipe,
    run_folder: Path,
    *,
    service_url: Callable[[], str],
    failed: Callable[[BaseException], None],
) -> Publisher:
    """`service_url` hands out the run folder, where servers do not see it; `failed` is as of `Publisher`."""
    serving, base = recipe.serving, model_folder(recipe.model)
    has_disk = recipe.cluster.shared_disk
    files = find_load(shared_disk=has_disk, service_url=service_url, run_folder=run_folder)

    def encoded(folders: PublicationFolders, load: Load) -> tuple[Encoding, Load]:
        if not serving.sends_deltas(find_dtype(recipe, read_shape(base)).name, shared_disk=has_disk):
            if recipe.placement.colocated:
                return MemoryFolders(folders, bucket_bytes=serving.weight_bucket_bytes), load
            return folders, load
        deltas = DeltaFolders(
            folders,
            is_auto=serving.weight_encoding == "auto",
            is_compressed=not has_disk,
            bucket_bytes=serving.weight_bucket_bytes,
        )
        return deltas, LoadDeltas(load, wait=folders.wait)

    return publisher_of(
        serving.weight_transport,
        run_folder / PUBLICATIONS,
        base=base,
        bucket_bytes=serving.weight_bucket_bytes,
        interrupt=recipe.rollout.interrupt,
        files=files,
        encoded=encoded,
        timeout_seconds=serving.request_timeout_seconds,
        keys=read_keys(own_token(), serving.api_key_variable),
        failed=failed,
    )


def publisher_of(
    transport: str,
    folder: Path,
    *,
    bucket_bytes: int | None = None,
    files: Load = load_from_disk,
    encoded: Encoded = lambda *whole: whole,
    **shared: Unpack[Shared],
) -> Publisher:
    """That of serving.weight_transport, with the arguments of its class."""
    if transport == "distributed":
        return BroadcastPublisher(folder, bucket_bytes=bucket_bytes, **shared)
    return Publisher(folder, files=files, encoded=encoded, **shared)
