"""The process groups that a rank holds, and the views that share them; as data and as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch.distributed as dist

from ...core.call import format_value
from ...core.text import count_noun, format_rows
from ...launch.torch_internals import timeout_of
from .mesh_groups import GroupKey, GroupRegistry, MeshGroups


@dataclass(frozen=True)
class GroupEntry:
    """A process group that a rank holds.

    Attributes:
        members: its global ranks in order; empty if the group is gone.
        origin: ``"default"``, ``"created"`` by meshkit, ``"external"`` if the user created it, or
            ``"gone"`` if the user has destroyed it since.
        backend: its backend.
        seconds: its timeout; None if torch does not expose it.
        uses: the id of each open view that uses it, with the axes there.
    """

    members: tuple[int, ...]
    origin: str
    backend: str
    seconds: float | None
    uses: tuple[tuple[int, str], ...]

    def cells(self) -> tuple[str, ...]:
        """Return the cells of the group in a table: ranks, origin, backend and timeout, uses."""
        timeout = "" if self.seconds is None else f" {self.seconds:g} s"
        ranks = f"{count_noun(len(self.members), 'rank')} {format_value(list(self.members))}"
        uses = "; ".join(f"{view}: {axes}" for view, axes in self.uses)
        return ranks, self.origin, f"{self.backend}{timeout}", uses


@dataclass(frozen=True)
class GroupsReport:
    """The process groups of one rank in a mesh and all its open views. ``str`` is a table.

    Attributes:
        rank: the rank.
        views: id to sizes as text, for the open views.
        groups: each group once, the largest first.
    """

    rank: int
    views: Mapping[int, str]
    groups: tuple[GroupEntry, ...]

    @property
    def communicators(self) -> int:
        """The number of process groups that these views use, the default group included."""
        return len(self.groups)

    def __str__(self) -> str:
        created = sum(group.origin == "created" for group in self.groups)
        groups = count_noun(self.communicators, "process group")
        head = f"rank {self.rank} holds {groups}, {created} created."
        views = (f"view {view}: {sizes}" for view, sizes in self.views.items())
        return "\n  ".join([head, *views, *format_rows([group.cells() for group in self.groups])])


def report_groups(mesh: MeshGroups) -> GroupsReport:
    """Return every group of the open views that this rank holds, the largest first. Local.

    A group of one rank that only absent axes have is left out.
    """
    mesh.check_open()
    registry, views = mesh.registry, mesh.registry.open_views
    keys_of: dict[dist.ProcessGroup, list[GroupKey]] = {}
    for key in dict.fromkeys(key for view in views.values() for key in view.groups):
        if not registry.uses(key):
            continue
        origin, group = registry.find(key)
        held = dist.group.WORLD if origin == "default" else group
        if held is not None:  # an external group stands for all groups of equal members
            keys_of.setdefault(held, []).append(key)
    entries = [_entry(registry, group, keys) for group, keys in keys_of.items()]
    names = {view_id: view.layout.sizes_text for view_id, view in views.items()}
    return GroupsReport(mesh.rank, names, tuple(sorted(entries, key=lambda e: -len(e.members))))


def _entry(
    registry: GroupRegistry, group: dist.ProcessGroup, keys: Sequence[GroupKey]
) -> GroupEntry:
    uses = tuple(sorted(use for key in keys for use in registry.uses(key)))
    limit = timeout_of(group)
    try:
        members, backend = dist.get_process_group_ranks(group), dist.get_backend(group)
    except (KeyError, ValueError):  # destroyed by the user who created it
        return GroupEntry((), "gone", "", None, uses)
    seconds = None if limit is None else limit.total_seconds()
    return GroupEntry(tuple(members), registry.find(keys[0])[0], backend, seconds, uses)
