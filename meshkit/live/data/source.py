"""Parts of samplers and streams: their facts, their first batch, and a check of their reader."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Protocol

from torch.utils.data import BatchSampler, DataLoader

from ...core.batch import BatchPlan
from ...core.errors import BatchError

DEPTH = 4  # frames from the check to the DataLoader's code; torchdata has one more than torch


class Source(Protocol):
    """A sampler or a stream."""

    first_batch: Callable[[], None] | None


def plan_facts(plan: BatchPlan) -> dict[str, str]:
    """Return the sizes of a plan as text, without the index of the rank."""
    names = "global_batch", "micro_batch", "accumulation_steps", "dp", "uneven"
    return {name: str(getattr(plan, name)) for name in names}


def run_first(source: Source, *, in_each_pass: bool = False) -> None:
    """Run what a sampler does before its first batch, until it succeeds once, or in each pass."""
    if source.first_batch is not None:
        source.first_batch()
        if not in_each_pass:
            source.first_batch = None


def find_loader(source: object) -> DataLoader[Any] | None:
    """Return the DataLoader whose code begins a pass over a sampler; None without one."""
    frame = inspect.currentframe()
    for _ in range(DEPTH + 3):
        frame = frame.f_back if frame else None
        loader = frame.f_locals.get("self") if frame else None
        if isinstance(loader, DataLoader) and (
            loader.batch_sampler is source or loader.sampler is source
        ):
            return loader
    return None


def check_not_batched_again(source: object) -> None:
    """Raise if the code that begins a pass takes each micro batch for one sample.

    ``DataLoader(sampler=...)`` and ``DataLoader(stream)`` give no sign before the pass begins, so
    look for the object of torch that reads: a BatchSampler, or a fetcher with ``auto_collation``.
    The frames are those of torch 2.11 to 2.15, and of torchdata 0.11.
    """
    frame = inspect.currentframe()
    for _ in range(DEPTH):
        frame = frame.f_back if frame else None
        reader = frame.f_locals.get("self") if frame else None
        if isinstance(reader, BatchSampler) and getattr(reader, "sampler", None) is source:
            raise BatchError(
                f"DataLoader(sampler=..., batch_size={reader.batch_size}) would make batches of "
                "whole batches.",
                "Each item of this sampler is a whole micro batch, not the index of one sample.",
                fix="DataLoader(dataset, batch_sampler=sampler), or mesh.loader(dataset, plan).",
            )
        if getattr(reader, "auto_collation", False) and getattr(reader, "dataset", None) is source:
            raise BatchError(
                "DataLoader(stream) without batch_size=None would make batches of whole batches.",
                "Each item of this stream is a micro batch.",
                fix="DataLoader(stream, batch_size=None, collate_fn=default_collate), "
                "or mesh.loader(dataset, plan).",
            )
