"""One world, many views: the groups that a mesh and its views share, and who of them is open.

Equal groups of equal backend and time are one group, which ends with the last view that uses it::

    dense   dp sp tp                 (dp sp) is 4 steps of 2   ── one group ──┐
    hsdp    replicate shard tp       shard   is 4 steps of 2   ───────────────┘

Every rank keeps the same books, that of groups of which it is no part too, so that all ranks make
or share the same. What is open is compared before a view is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

import torch.distributed as dist

from ...core.call import Call
from ...core.grid.group_plan import Axes
from ...core.grid.strides import Strides

GroupKey = tuple[Strides, str, timedelta]  # members in order, backend, timeout


@dataclass(frozen=True)
class Groups:
    """The process groups of one rank in one mesh.

    Attributes:
        by_key: the key of a plan to this rank's group; several listings of axes share one. Empty
            on a rank outside the mesh.
        used: what each must have in common with an equal one, to the axes that stand for it.
        made: those of them that were created for it, in order; None where this rank is in none.
    """

    by_key: Mapping[Axes, dist.ProcessGroup]
    used: Mapping[GroupKey, tuple[Axes, ...]]
    made: Mapping[GroupKey, dist.ProcessGroup | None]

    @property
    def created(self) -> tuple[dist.ProcessGroup, ...]:
        """This rank's groups that were created for it, in order."""
        return tuple(group for group in self.made.values() if group is not None)


NONE = Groups({}, {}, {})


@dataclass(frozen=True)
class OpenView:
    """An open view: its sizes in words, and the groups it uses with the axes they stand for."""

    name: str
    groups: Mapping[GroupKey, tuple[Axes, ...]]


@dataclass
class GroupRegistry:
    """The groups of a mesh and of its views: a book that is the same on every rank.

    Attributes:
        number: that of the meeting in which the first mesh was agreed upon.
        call: the one that built it.
        lent: groups that a user made and lent, by their members; they stay when all is closed.
        lends: the axes for which they were given, in words.
        groups: what meshkit made.
        users: every open view by the number of its birth, with what it uses.
        born: how many views there were.
    """

    number: int = 0
    call: Call = field(default_factory=lambda: Call("build_mesh"))
    lent: Mapping[Strides, dist.ProcessGroup | None] = field(default_factory=dict)
    lends: str = ""
    groups: dict[GroupKey, dist.ProcessGroup | None] = field(default_factory=dict)
    users: dict[int, OpenView] = field(default_factory=dict)
    born: int = 0

    def register(
        self,
        name: str,
        groups: Groups,
        number: int,
    ) -> int:
        """Take a mesh and its groups into the book; the number of its birth."""
        if not self.born:
            self.number = number
        self.groups.update(groups.made)
        self.users[self.born] = OpenView(name, groups.used)
        self.born += 1
        return self.born - 1

    def release(self, birth: int) -> tuple[dist.ProcessGroup, ...]:
        """Strike a mesh out; this rank's groups that nobody uses any more, in order."""
        self.users.pop(birth, None)
        used = {alike for user in self.users.values() for alike in user.groups}
        over = [alike for alike in self.groups if alike not in used]
        ended = [self.groups.pop(alike) for alike in over]
        return tuple(group for group in ended if group is not None)

    def find(self, alike: GroupKey) -> tuple[str, dist.ProcessGroup | None]:
        """Where a group comes from, and the group; None where it is none of this rank's.

        ``lent`` by the user, whatever its terms; ``made``; else ``default``, or yet to be made.
        """
        if alike[0] in self.lent:
            return "lent", self.lent[alike[0]]
        return ("made", self.groups[alike]) if alike in self.groups else ("default", None)

    def uses(self, alike: GroupKey) -> tuple[tuple[int, str], ...]:
        """The open views that use a group, and for which axes."""
        found = []
        for birth, user in self.users.items():
            listed = [" ".join(axes) or "all" for axes in user.groups.get(alike, ())]
            found += [(birth, ", ".join(listed))] if listed else []
        return tuple(found)

    def in_words(self) -> str:
        """What is open, as ranks compare it."""
        users = ", ".join(f"{birth} ({user.name})" for birth, user in self.users.items())
        return f"views {users} of mesh {self.number}"
