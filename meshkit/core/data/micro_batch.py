"""Assign the micro batches of one optimizer step to data coordinates, the same number to each.

The samples of a step are cut into micro batches, which are assigned round-robin::

    5 micro batches over dp=2

                     micro step 0    micro step 1    micro step 2
    data index 0       batch 0         batch 2         batch 4
    data index 1       batch 1         batch 3         filler

A filler runs like any micro batch, since FSDP2 communicates in every forward. Its weight is 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..arrays import Ints


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """One forward and backward of one rank.

    Attributes:
        index: the micro step within the optimizer step, from 0.
        samples: int64 (up to micro_batch,), the samples to read.
        weight: the factor of the mean loss of the micro batch. Weighted gradients, averaged over
            the data coordinates as DDP and FSDP do, add up to the mean over the global batch.
        is_last: whether gradients are synchronized after this micro batch.
        is_filler: whether the samples belong to another micro batch; the weight is then 0.
    """

    index: int
    samples: Ints
    weight: float
    is_last: bool
    is_filler: bool = False


def micro_batches(
    total: int, micro_batch: int, dp: int, data_index: int, first: int = 0
) -> Iterator[MicroBatch]:
    """Yield the micro batches of one data coordinate.

    Micro batch ``b`` of a step belongs to data coordinate ``b % dp``. Its weight is ``dp *
    samples in it / total``, so the average over dp of the weighted sums is the mean.

    Cost: O(micro_batch) for each.
    """
    num_batches = -(-total // micro_batch)
    steps = -(-num_batches // dp)
    for index in range(steps):
        number = index * dp + data_index
        is_filler = number >= num_batches
        begin = (data_index % num_batches if is_filler else number) * micro_batch
        samples = np.arange(first + begin, first + min(begin + micro_batch, total), dtype=np.int64)
        weight = 0.0 if is_filler else dp * len(samples) / total
        yield MicroBatch(index, samples, weight, index == steps - 1, is_filler)
