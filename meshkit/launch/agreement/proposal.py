"""The proposal of a rank, and the ranks that compare their proposals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch.distributed as dist

from ...core.errors import MeshkitError
from ..world import World

if TYPE_CHECKING:
    from ..store.check_in import ProcessIdentity
    from .claims import Claim


class Proposal(NamedTuple):
    """A request that must be equal on all ranks.

    Attributes:
        operation: the public function that proposes, for example ``"build_mesh"``.
        fields: the values to compare, by name.
        conflict_summary: first line of the error if ranks disagree or one of them failed.
        claims: values that are compared only among the ranks that set them, or that only one rank
            may have.
        describe_rank: returns the coordinate of a rank as text, for errors; None leaves it out.
        stage: prefix of the call in errors: ``"the end of "``; empty at the start of the call.
        expected_hosts: returns the hosts of the job, as far as the launcher lists them.
        failure: an earlier failure of this rank. All ranks raise it, unless ranks are missing.
        seconds: the seconds of this rank by phase, which grow until it checks in.
        report: called with the id of the round when all ranks have created their groups.
        process_start: text that no other process of this host shares; empty leaves it out.
        check_first: looks at the process that proposed first, and at its ``process_start``, as its
            start of the job may have been given up.
    """

    operation: str
    fields: Mapping[str, str]
    conflict_summary: str
    claims: tuple[Claim, ...] = ()
    describe_rank: Callable[[int], str] | None = None
    stage: str = ""
    expected_hosts: Callable[[], Sequence[str]] = tuple
    failure: MeshkitError | None = None
    seconds: Mapping[str, float] = {}
    report: Callable[[int], None] | None = None
    process_start: str = ""
    check_first: Callable[[ProcessIdentity, str], None] | None = None


class Participants(NamedTuple):
    """The ranks of a round and their store.

    Attributes:
        store: the store of a generation of the job.
        world: this process.
        ranks: the ranks that take part, this one among them.
        prefix: key prefix of the rounds, if only a part of the world takes part.
        counter: the number of this rank's rounds by prefix; None counts them in the store, as the
            store of a default group that someone else created may have served an earlier group.
    """

    store: dist.Store
    world: World
    ranks: Sequence[int]
    prefix: str = ""
    counter: Counter[str] | None = None

    @classmethod
    def of(
        cls, store: dist.Store, world: World, counter: Counter[str] | None = None
    ) -> Participants:
        """Return all ranks of a world."""
        return cls(store, world, range(world.world_size), counter=counter)
