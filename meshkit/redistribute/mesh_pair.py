"""The two meshes of a move, and how their ranks agree at the store of the job."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, partial
from typing import cast

import torch

from ..errors import MeshkitError
from ..groups.groups import message_timeout
from ..groups.registry import MeshGroups
from ..groups.status import within_guard
from ..launch.agreement import Agreement
from ..launch.disagreement import describe_coordinate
from ..launch.job import require_job
from ..launch.judges import Json
from ..launch.of_one_process import OfOneProcess
from ..launch.store import Store
from ..layout.layout import Layout


@dataclass(frozen=True, eq=False)
class MeshPair(OfOneProcess):
    """The two meshes of a move, as this rank sees them."""

    source: MeshGroups
    target: MeshGroups
    device: torch.device
    is_checked: Callable[[], bool]  # returns whether ``mesh.checked()`` of the source is active

    @property
    def rank(self) -> int:
        """This rank."""
        return self.source.rank

    @cached_property
    def layouts(self) -> tuple[Layout, Layout]:
        """The layouts of both."""
        return self.source.plan.layout, self.target.plan.layout

    @property
    def is_outside(self) -> bool:
        """Whether this rank is in neither mesh."""
        return all(self.rank not in layout for layout in self.layouts)

    def check_open(self) -> None:
        """Raise if one of the meshes is closed."""
        self.source.check_open()
        self.target.check_open()

    def store(self) -> Store:
        """Return the store of the job."""
        store = require_job().store
        if store is None:
            line = "the default group has no store, in which ranks of two meshes agree."
            raise MeshkitError(line, fix="meshkit.init() in place of your own init_process_group.")
        return store

    def message_timeout(self) -> timedelta:
        """Return how long a message may take: the least timeout of both meshes."""
        return min(message_timeout(groups) for groups in (self.source, self.target))

    def synchronize(self) -> None:
        """Wait until what was received has arrived; raise if a guard has aborted it."""
        torch.get_device_module(self.device).synchronize(self.device)
        require_job().check_not_aborted()

    def agree(
        self,
        call: str,
        facts: Mapping[str, Json],
        read: Callable[[Agreement], Json],
        *,
        stated: str,
        alike: bool,
    ) -> list[tuple[Json, list[int]]]:
        """Return what ranks state beside equal facts, with its ranks. Collective over both meshes.

        ``read`` returns what this rank states under the name ``stated``, or None for nothing. If it
        raises, no rank waits. ``alike`` is whether all that is stated must be equal.
        """
        agreement = self._agreement(call)
        own = partial(read, agreement)
        return agreement.stated({**self._facts, **facts}, stated, own, alike=alike)

    def confirm(
        self, call: str, facts: Mapping[str, Json], check: Callable[[], object], limit: timedelta
    ) -> None:
        """Return once all ranks state equal facts. Collective over both meshes.

        If ``check`` raises on a rank, no rank waits. The last rank decides, so no rank looks at the
        store every 50 ms as in :meth:`agree`. ``limit`` is how long ranks wait for each other,
        inside a guard no longer than its timeout.
        """
        self._agreement(call, limit).same({**self._facts, **facts}, check)

    @contextmanager
    def announcing(self, call: str) -> Iterator[None]:
        """Announce an error that leaves the block before a round to the ranks of both meshes."""
        try:
            yield
        except Exception as error:
            if require_job().store is not None:
                self._agreement(call).fail(error)
            raise

    def _agreement(self, call: str, limit: timedelta | None = None) -> Agreement:
        """Return the next agreement of these ranks, which each rank counts."""
        source, target = self.layouts
        job, part = require_job(), ""
        ranks = sorted({*map(int, source.grid.flat), *map(int, target.grid.flat)})
        if len(ranks) < job.world.world_size:
            ids = (f"{mesh.round_id}.{mesh.view_id}" for mesh in (self.source, self.target))
            part = f"move/{'/'.join(ids)}"
        limit = within_guard(job.arrival_timeout if limit is None else limit)
        describe = partial(_describe, self.layouts)  # a job that kept the meshes would never end
        agreement = job.agreement(call, ranks=ranks, part=part, limit=limit, describe=describe)
        if agreement is None:
            self.store()  # raises
        return cast(Agreement, agreement)

    @property
    def _facts(self) -> dict[str, str]:
        source, target = self.layouts
        return {"mesh": repr(source), "to": repr(target)}


def _describe(layouts: tuple[Layout, Layout], rank: int) -> str:
    """Return the coordinate of a rank of one of two meshes as text."""
    source, target = layouts
    return describe_coordinate(source if rank in source else target, rank)
