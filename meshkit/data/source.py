"""Parts of samplers and streams: their facts, their first batch, and a check of their reader."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from torch.utils.data import BatchSampler

from ..errors import BatchError
from ..text import article
from .batch import BatchPlan

DEPTH = 16  # frames from the check to the loader of another library
READ = ("batch_sampler", "sampler", "dataset")  # fields that hold what an object reads


class Source(Protocol):
    """A sampler or a stream."""

    first_batch: Callable[[], None] | None


def plan_facts(plan: BatchPlan) -> dict[str, str]:
    """Return the sizes of a plan as text, without the index of the rank."""
    names = "global_batch", "micro_batch", "accumulation_steps", "dp", "uneven"
    return {name: str(getattr(plan, name)) for name in names}


def prepare_first_batch(source: Source, *, in_each_pass: bool = False) -> None:
    """Run what a sampler does before its first batch, until it succeeds once, or in each pass."""
    if source.first_batch is not None:
        source.first_batch()
        if not in_each_pass:
            source.first_batch = None


def check_reader(source: object) -> None:
    """Raise if the code that begins a pass would take micro batches for something else.

    ``DataLoader(sampler=...)`` and ``DataLoader(stream)`` give no sign before the pass begins, so
    look for the object that reads: a BatchSampler or a fetcher of torch with ``auto_collation``,
    and the samplers and loaders of other libraries that give each rank a share. The frames are
    those of torch 2.11 to 2.15, of torchdata 0.11 and of accelerate 1.15.

    Raises:
        BatchError: if it batches them again, or divides those of one rank over ranks again.
    """
    for reader in _callers():
        fields = getattr(reader, "__dict__", {})
        if isinstance(reader, BatchSampler) and fields.get("sampler") is source:
            raise BatchError(
                f"DataLoader(sampler=..., batch_size={reader.batch_size}) would make batches of "
                "whole batches.",
                "Each item of this sampler is a whole micro batch, not the index of one sample.",
                fix="DataLoader(dataset, batch_sampler=sampler), or mesh.loader(dataset, plan).",
            )
        if fields.get("auto_collation") and fields.get("dataset") is source:
            raise BatchError(
                "DataLoader(stream) without batch_size=None would make batches of whole batches.",
                "Each item of this stream is a micro batch.",
                fix="DataLoader(stream, batch_size=None, collate_fn=default_collate), "
                "or mesh.loader(dataset, plan).",
            )
        parts = fields, getattr(fields.get("base_dataloader"), "__dict__", {})
        is_read = any(part.get(name) is source for part in parts for name in READ)
        if is_read and (ranks := _count_shares(fields)) > 1:
            raise BatchError(
                f"{article(type(reader).__name__)} would divide the micro batches of this rank "
                f"over {ranks} ranks again.",
                "They are the share of one rank, so most samples would never be read.",
                fix="read mesh.loader(dataset, plan) itself, without accelerator.prepare(loader) "
                "or another wrapper for several ranks.",
            )


def _count_shares(fields: Mapping[str, Any]) -> int:
    """Return among how many ranks an object of another library divides what it reads."""
    of_job = getattr(fields.get("state"), "num_processes", 1)  # of a loader of accelerate
    shares = fields.get("num_processes", fields.get("num_replicas", of_job))
    return shares if isinstance(shares, int) else 1


def find_fetcher(source: object) -> Any | None:  # noqa: ANN401  # of torch, without a public type
    """Return the object that collates what a DataLoader without ``batch_size`` reads; or None."""
    for reader in _callers():
        fields = getattr(reader, "__dict__", {})
        if {"collate_fn", "auto_collation"} <= fields.keys() and fields.get("dataset") is source:
            return reader
    return None


def _callers() -> Iterator[object]:
    """Yield the objects whose methods have called the caller, the nearest first."""
    frame = inspect.currentframe()
    for _ in range(DEPTH):
        frame = frame.f_back if frame else None
        if frame and "self" in frame.f_locals:
            yield frame.f_locals["self"]
