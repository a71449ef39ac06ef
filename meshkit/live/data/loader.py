"""Build torch's DataLoader over the micro batches of a rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.utils.data import DataLoader, default_collate

from ...core.errors import BatchError
from ...core.text import article
from .sampler import MicroBatchSampler
from .stream import MicroBatchStream

DECIDED = {  # options of DataLoader that the plan or mesh.loader decides, and their counterpart
    "batch_size": "mesh.batch(micro_batch=...)",
    "sampler": "mesh.loader(dataset, plan, shuffle=True)",
    "batch_sampler": "DataLoader(dataset, batch_sampler=...)",
    "drop_last": 'mesh.loader(dataset, plan, tail="drop")',
}


def make_loader(
    dataset: object,
    source: MicroBatchSampler | MicroBatchStream[Any],
    options: Mapping[str, Any],
) -> DataLoader[Any]:
    """Return a DataLoader that yields one micro batch at a time. See ``mesh.loader``."""
    if isinstance(source, MicroBatchStream):
        return DataLoader(source, batch_size=None, **{"collate_fn": default_collate, **options})
    if not hasattr(dataset, "__getitem__"):
        line = f"the dataset is {article(type(dataset).__name__)}, which has no samples."
        raise BatchError(line, fix="a dataset; mesh.sampler(...) accepts a number of samples.")
    return DataLoader(dataset, batch_sampler=source, **options)  # type: ignore[arg-type]


def check_options(options: Mapping[str, Any]) -> None:
    """Raise if an option would change which samples a batch holds."""
    for name, value in options.items():
        if name in DECIDED:
            line = f"{name} is {value!r}, and the plan decides which samples a batch holds."
            raise BatchError(line, fix=f"leave out {name}, or {DECIDED[name]}.")
