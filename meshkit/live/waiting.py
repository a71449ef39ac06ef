"""A wait for a collective that was begun before, by a name that a guard finds."""

from __future__ import annotations

import torch.distributed as dist


def wait(work: dist.Work | None, group: dist.ProcessGroup) -> None:
    """Wait for a collective; of a rank that is here a guard says ``"wait over dp"``.

    Args:
        work: what began it; None where nothing is left to wait for.
        group: where it runs.
    """
    if work is not None:
        work.wait()
