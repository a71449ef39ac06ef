"""Gather and compare digests of the batches of all ranks. Received bytes are never unpickled."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.distributed as dist

from ...core.data.batch_check import (
    BatchDigest,
    batch_conflict_error,
    data_coordinates,
    digests_conflict,
)
from ...core.grid.layout import Layout
from ...core.text import article
from ..groups import gather_bytes

PLAIN = int | float | str | bytes | bool | None
DIGEST_BYTES = 32
HEAD_BYTES = DIGEST_BYTES + 8 + 1  # the digest, the length of the details, whether a fault exists


def check_batches(
    batch: object,
    layout: Layout,
    data: Sequence[str],
    group: dist.ProcessGroup,
    device: torch.device,
) -> None:
    """Compare batches over the group of the whole layout. See ``mesh.check_batch``.

    Collective over the group.
    """
    own = batch_digest(batch)
    details = own.packed()
    head = own.digest() + len(details).to_bytes(8, "little") + bytes([bool(own.fault)])
    coordinates = data_coordinates(layout, data)  # in the order of the group
    heads = dict(zip(coordinates, gather_bytes(head, HEAD_BYTES, group, device), strict=True))
    digests = {rank: row[:DIGEST_BYTES] for rank, row in heads.items()}
    if not (any(row[-1] for row in heads.values()) or digests_conflict(digests, coordinates)):
        return
    sizes = [int.from_bytes(row[DIGEST_BYTES:-1], "little") for row in heads.values()]
    rows = gather_bytes(details, max(sizes), group, device)
    packed = [row[:size] for row, size in zip(rows, sizes, strict=True)]
    batches = dict(zip(coordinates, map(BatchDigest.unpacked, packed), strict=True))
    raise batch_conflict_error(layout, data, batches)


def batch_digest(batch: object) -> BatchDigest:
    """Return the digest of a batch; with a fault as text if the batch is unreadable. Local."""
    leaves: dict[str, str] = {}
    path = "batch"
    try:
        for path, leaf in _leaves("batch", batch):
            if not isinstance(leaf, torch.Tensor | PLAIN):
                return BatchDigest({}, f"{path} is {article(type(leaf).__name__)}")
            leaves[path] = _describe_leaf(leaf)
    except Exception as error:  # the peers wait in the gather, so this rank must join it
        reason = (str(error).splitlines() or [""])[0][:100]
        return BatchDigest({}, f"{path} cannot be read ({type(error).__name__}: {reason})")
    return BatchDigest(leaves)


def _leaves(path: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield every leaf with its path; an empty container is a leaf, so that it is compared too."""
    items: list[tuple[object, object]] = []
    if isinstance(value, Mapping):
        items = [*value.items()]
    elif isinstance(value, list | tuple):
        items = [*enumerate(value)]
    else:
        yield path, value
    if not items and isinstance(value, Mapping | list | tuple):
        yield path, f"empty {type(value).__name__}"
    for key, item in items:
        yield from _leaves(f"{path}[{key!r}]", item)


def _describe_leaf(leaf: object) -> str:
    """Return the description of a leaf with a digest: ``int64 (2, 8) 9f86d081...``."""
    if not isinstance(leaf, torch.Tensor):
        return f"{type(leaf).__name__} {_digest(repr(leaf).encode())}"
    flat = leaf.detach().cpu().resolve_conj().resolve_neg().contiguous().flatten()
    content = flat.view(torch.uint8).numpy()
    dtype = str(leaf.dtype).removeprefix("torch.")
    return f"{dtype} {tuple(leaf.shape)} {_digest(content.data)}"


def _digest(content: bytes | memoryview) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()
