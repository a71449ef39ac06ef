"""A mesh of real ranks whose groups were proved, as text and as what JSON can hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .runs import format_ranks
from .verification import Checked, Verification
from .words import count_noun, format_sizes


@dataclass(frozen=True)
class Verified:
    """What one rank knows when every group has been proved; but for ``rank`` all know the same.

    Attributes:
        rank: who says so.
        sizes: axis name to size, the outermost first.
        launcher: who started the ranks.
        device: what kind they compute on.
        backend: what the groups run on.
        found: what the check of the groups took.
        built: seconds for joining the job and building the mesh.
        checked: seconds for all checks.
    """

    rank: int
    sizes: Mapping[str, int]
    launcher: str
    device: str
    backend: str
    found: Verification
    built: float
    checked: float

    def as_text(self) -> str:
        """As a person reads it: a line for each set of groups, then the sum.

        Example:
            >>> one = Checked(("dp",), 1, 2, 0.0004, (0, 1), 0.0005)
            >>> found = Verification((one,), 1, 0.0001, "dp=1 tp=0")
            >>> about = 0, {"dp": 2, "tp": 1}, "spawn", "cpu", "gloo"
            >>> print(Verified(*about, found, 0.5, 0.25).as_text())
            dp=2 tp=1: 2 ranks, launcher spawn, device cpu, backend gloo; joined and built in 0.50 s
            OK  dp  1 group of 2   2 members met in 0.400 ms, at most 0.500 ms on ranks 0-1
            OK  tp  2 groups of 1  nothing to meet
            OK: 1 group checked in 0.25 s; rank 1 (dp=1 tp=0) came last, by 0.100 ms
        """
        found, total = self.found, math.prod(self.sizes.values())
        head = (
            f"{format_sizes(self.sizes)}: {count_noun(total, 'rank')}, launcher {self.launcher}, "
        )
        head += f"device {self.device}, backend {self.backend}; "
        head += f"joined and built in {self.built:.2f} s"
        rows = [
            (" ".join(one.axes), one.num_groups, one.group_size, _met(one)) for one in found.groups
        ]
        rows += [(a, total, 1, "nothing to meet") for a, size in self.sizes.items() if size == 1]
        cells = [
            (name, f"{count_noun(n, 'group')} of {size}", said) for name, n, size, said in rows
        ]
        wide = [max((len(cell[i]) for cell in cells), default=0) for i in (0, 1)]
        lines = [f"OK  {name:{wide[0]}}  {what:{wide[1]}}  {said}" for name, what, said in cells]
        groups = sum(one.num_groups for one in found.groups)
        last = f"OK: {count_noun(groups, 'group')} checked in {self.checked:.2f} s"
        if found.slowest_rank is not None:
            slowest = f"rank {found.slowest_rank} ({found.coordinate})"
            last += f"; {slowest} came last, by {found.waited * 1e3:.3f} ms"
        return "\n".join([head, *lines, last])

    def as_dict(self) -> dict[str, Any]:
        """For a program; times in seconds."""
        said = asdict(self)
        del said["rank"], said["found"]
        found = asdict(self.found)
        for one in found["groups"]:
            one["members"] = one["num_groups"] * one["group_size"]
        return {"ok": True, **said, **found}


def _met(one: Checked) -> str:
    """How the members of the groups over some axes met."""
    members = count_noun(one.num_groups * one.group_size, "member")
    took = f"{one.seconds * 1e3:.3f} ms, at most {one.slowest_seconds * 1e3:.3f} ms"
    return f"{members} met in {took} on ranks {format_ranks(sorted(one.slowest))}"
