"""The rank of this process, its launcher, and how all ranks join the job.

The path of ``init``, in the order of its files::

    join             init: detect, open the store, agree, create the default group, confirm
    detect           the world of this rank, from one row of launchers
    device           its device and backend
    nodes            its node, from the machines of all ranks, if the launcher does not state it
    generation       the start of the job that this rank joins, and its lease on the rank
    store, round     where ranks meet, and how they agree
    creation         groups of torch, created on all ranks or on none, in time
    default_group    torch's default group
    job              the facts that stay: ranks, store, timeouts, epoch

``launchers`` is the table to extend, with ``signs`` of jobs that no row knows. ``mpi`` and
``slurm`` are rows with code. ``times`` has the deadlines, and the seconds that the promises need.
``spawn`` starts ranks, and ``newcomer`` lets one join a job that runs. ``meeting`` is where two
jobs meet, ``recording`` the group of a rehearsal. Private names of torch stand in
``torch_internals`` alone, and no other package reads the environment.
"""

from __future__ import annotations

import sys
from functools import partial
from types import ModuleType
from typing import NoReturn

from ..call import Call
from ..guesses import launch_error


class _Package(ModuleType):
    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        """Raise SpecError: ``colossalai.launch(...)`` is ``meshkit.init(...)`` here."""
        error = launch_error(args, kwargs, partial(Call, "meshkit.init"))
        raise error.quote(Call("meshkit.launch", args, kwargs))


sys.modules[__name__].__class__ = _Package
