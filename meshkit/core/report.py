"""Which process groups a rank holds, and who shares them, as data and as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .call import written
from .words import count_noun

WIDTH = 36  # columns for the members


@dataclass(frozen=True)
class Held:
    """A process group that a rank holds.

    Attributes:
        members: its global ranks in order; none of a group that is gone.
        origin: ``"default"``, ``"made"`` by meshkit, ``"lent"`` by the user, or ``"gone"``: lent,
            and destroyed since.
        backend: what it runs on.
        seconds: how long a collective may take; None where torch does not tell.
        uses: the number of an open view, and the axes of it that the group stands for.
    """

    members: tuple[int, ...]
    origin: str
    backend: str
    seconds: float | None
    uses: tuple[tuple[int, str], ...]

    def __str__(self) -> str:
        wait = "" if self.seconds is None else f" {self.seconds:g} s"
        who = count_noun(len(self.members), "rank") + f" {written(list(self.members))}"
        uses = "; ".join(f"{view}: {axes}" for view, axes in self.uses)
        return f"{who:<{WIDTH}} {self.origin:<7} {self.backend}{wait}  {uses}"


@dataclass(frozen=True)
class GroupsReport:
    """The process groups of one rank in a mesh and all its open views. ``str`` is a table.

    Attributes:
        rank: whose.
        views: the open views, their sizes in words, by number.
        groups: each group once, the largest first.
    """

    rank: int
    views: Mapping[int, str]
    groups: tuple[Held, ...]

    @property
    def communicators(self) -> int:
        """How many process groups these views use, the default group and that of one included."""
        return len(self.groups)

    def __str__(self) -> str:
        made = sum(group.origin == "made" for group in self.groups)
        head = f"rank {self.rank} holds {count_noun(self.communicators, 'process group')}, {made} made."
        views = (f"view {view}: {sizes}" for view, sizes in self.views.items())
        return "\n  ".join([head, *views, *map(str, self.groups)])
