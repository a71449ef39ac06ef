"""Refuse a DataLoader that would batch whole micro batches once more."""

from __future__ import annotations

import inspect

from torch.utils.data import BatchSampler

from ...core.errors import BatchError

DEPTH = 4  # frames from here to the DataLoader's code; torchdata has one more than torch


def check_not_batched_again(source: object) -> None:
    """Raise if the code that begins a pass takes each micro batch for one sample.

    ``DataLoader(sampler=...)`` and ``DataLoader(stream)`` give no sign before the pass begins, so
    look for the object of torch that reads: a BatchSampler, or a fetcher with ``auto_collation``.
    """
    frame = inspect.currentframe()
    for _ in range(DEPTH):
        frame = frame.f_back if frame else None
        reader = frame.f_locals.get("self") if frame else None
        if isinstance(reader, BatchSampler) and getattr(reader, "sampler", None) is source:
            raise _nested_sampler_error(reader.batch_size)
        if getattr(reader, "auto_collation", False) and getattr(reader, "dataset", None) is source:
            raise _nested_stream_error()


def _nested_sampler_error(batch_size: int) -> BatchError:
    return BatchError(
        f"DataLoader(sampler=..., batch_size={batch_size}) would make batches of whole batches.",
        "Each item of this sampler is a whole micro batch, not the index of one sample.",
        fix="DataLoader(dataset, batch_sampler=sampler), or mesh.loader(dataset, plan).",
    )


def _nested_stream_error() -> BatchError:
    return BatchError(
        "DataLoader(stream) without batch_size=None would make batches of whole batches.",
        "Each item of this stream is a micro batch.",
        fix="DataLoader(stream, batch_size=None, collate_fn=default_collate), "
        "or mesh.loader(dataset, plan).",
    )
