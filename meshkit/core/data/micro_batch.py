"""The micro batches of one data coordinate in one optimizer step, as many on every coordinate.

The samples of a step are cut into micro batches, which are dealt round to the data coordinates::

    5 micro batches over dp=2

                     micro step 0    micro step 1    micro step 2
    data index 0       batch 0         batch 2         batch 4
    data index 1       batch 1         batch 3         filler

A filler is run like the others, as FSDP2 communicates in every forward, and counts for nothing.
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
        index: which micro step of the optimizer step this is, from 0.
        samples: int64 (up to micro_batch,), which samples to read.
        weight: by what to scale the mean loss of the micro batch. Gradients that are averaged over
            the data coordinates, as DDP and FSDP do, then add up to the mean over the global batch.
        is_last: whether gradients are to be synchronised after this one.
        is_filler: whether the samples are another's, read only to keep step; the weight is 0 then.
    """

    index: int
    samples: Ints
    weight: float
    is_last: bool
    is_filler: bool = False


def micro_batches(
    total: int, micro_batch: int, dp: int, data_index: int, first: int = 0
) -> Iterator[MicroBatch]:
    """The micro batches of one data coordinate. Lazily, O(micro_batch) each.

    Micro batch ``b`` of a step belongs to data coordinate ``b % dp`` and has the weight
    ``dp * samples in it / total``: the average over dp of what each rank adds up is the mean.

    Args:
        total: samples in the step, over all coordinates; the last micro batch may be short.
        micro_batch: samples in each of the others.
        dp: how many data coordinates there are.
        data_index: which one this is.
        first: the number of the first sample of the step.

    Example:
        >>> [(m.samples.tolist(), m.weight) for m in micro_batches(5, 2, 2, 1)]
        [([2, 3], 0.8), ([2, 3], 0.0)]
    """
    cuts = -(-total // micro_batch)
    steps = -(-cuts // dp)
    for index in range(steps):
        number = index * dp + data_index
        filler = number >= cuts
        begin = (data_index % cuts if filler else number) * micro_batch
        samples = np.arange(first + begin, first + min(begin + micro_batch, total), dtype=np.int64)
        weight = 0.0 if filler else dp * len(samples) / total
        yield MicroBatch(index, samples, weight, index == steps - 1, filler)
