"""The collectives that are measured: what is known of each, in one table.

In the words of nccl-tests, whose array is the total one, of (items,), cut in n equal parts on n
ranks.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Operation:
    """What a collective does with its array.

    Attributes:
        passes: how often its bytes go round a ring, each time (n - 1) / n of them; 0 where they go
            over one wire once.
        reduces: whether it adds up.
        rooted: whether one rank gives to all.
        in_place: whether the output starts as the source, and the call reads no other.
        from_part: whether the source is one part, rather than the whole array.
        to_part: whether the output is one part.
        counts_part: whether ``count`` is that of one part.
    """

    passes: int = 0
    reduces: bool = False
    rooted: bool = False
    in_place: bool = False
    from_part: bool = False
    to_part: bool = False
    counts_part: bool = False

    def source_items(self, items: int, ranks: int) -> int:
        """How many items a rank puts in."""
        return items // ranks if self.from_part else items

    def output_items(self, items: int, ranks: int) -> int:
        """How many items a rank gets."""
        return items // ranks if self.to_part else items

    def counted(self, items: int, ranks: int) -> int:
        """The ``count`` of nccl-tests."""
        return items // ranks if self.counts_part else items


OPERATIONS = {
    "all_reduce": Operation(passes=2, reduces=True, in_place=True),
    "all_gather": Operation(passes=1, from_part=True, counts_part=True),
    "reduce_scatter": Operation(passes=1, reduces=True, to_part=True, counts_part=True),
    "all_to_all": Operation(passes=1, counts_part=True),
    "broadcast": Operation(rooted=True, in_place=True),
    "send_recv": Operation(),
}
