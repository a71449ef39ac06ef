"""Ask NCCL for the counts of ranks whose process does not answer a roll call.

Such a process may hold the lock of its interpreter, in C++ code of the user for example, and no
thread of Python answers. A thread of NCCL in it does. Its counts are not those of torch, so only
differences are used::

    rank 0 (this one)   torch: 8 begun over dp   NCCL: 21
    rank 1 (silent)                              NCCL: 20   ->   7 begun over dp

This never ran with NCCL itself, as no test has it: see ``launch/nccl_ras.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist

from ..launch.disagreement import RankStatus
from ..launch.nccl_ras import ask_ras, lags
from ..launch.times import TIMES
from ..launch.torch_groups import is_nccl
from .state import Guard


def ask_nccl(guard: Guard, ranks: Sequence[int]) -> dict[int, RankStatus]:
    """Return how many collectives ranks that do not answer have begun, as far as NCCL says. Local.

    A rank is left out if NCCL knows none of its groups. Without groups of NCCL nothing is asked.

    Cost: a second at most.
    """
    groups = {axes: group for axes, group in guard.named().items() if axes and is_nccl(group)}
    if not (ranks and groups):
        return {}
    communicators, known = ask_ras(TIMES.silent), guard.job.processes()
    own, begun = guard.status(None).begun, dict[int, dict[str, int]]()
    for axes, group in groups.items():
        members = dist.get_process_group_ranks(group)
        pids = [known[rank].pid if rank in known else None for rank in members]
        for place, fewer in lags(communicators, pids, members.index(guard.rank)).items():
            if members[place] in ranks and axes in own:
                begun.setdefault(members[place], {})[axes] = own[axes] - fewer
    return {rank: RankStatus(rank, counts, sees_waits=False) for rank, counts in begun.items()}
