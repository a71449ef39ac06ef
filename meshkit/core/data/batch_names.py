"""Names that other libraries give to the sizes of a batch.

::

    here                 elsewhere
    global_batch         global_batch_size, train_batch_size (DeepSpeed)
    micro_batch          micro_batch_size, per_device_train_batch_size, batch_size (DataLoader)
    accumulation_steps   gradient_accumulation_steps, accumulate_grad_batches (Lightning)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..errors import BatchError, Change
from ..grid.foreign_names import BATCH_NAMES

MEANING = {
    "global_batch": "global_batch counts the samples of one optimizer step over all ranks.",
    "micro_batch": "micro_batch counts the samples of one forward and backward of one rank.",
    "accumulation_steps": "accumulation_steps counts the micro batches of one rank in a step.",
}


def explain_names(args: Sequence[object], kwargs: Mapping[str, object]) -> BatchError | None:
    """Return the error if a size of a batch has the name of another library."""
    foreign = {name: size for name, size in kwargs.items() if name in BATCH_NAMES}
    return foreign_name_error(foreign, kwargs) if foreign else None


def foreign_name_error(foreign: Mapping[str, object], given: Mapping[str, object]) -> BatchError:
    """Return the error for names of other libraries; the fix keeps their values."""
    names = {name: BATCH_NAMES[name] for name in foreign}
    renamed = {new: foreign[name] for name, new in names.items() if given.get(new) is None}
    summary = ", and ".join(f"{name} is called {new} here" for name, new in names.items())
    meanings = [MEANING[new] for new in dict.fromkeys(names.values())]
    fix = (Change(**dict.fromkeys(foreign), **renamed), ".")
    return BatchError(f"{summary}.", *meanings, fix=fix)
