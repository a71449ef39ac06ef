"""Recovery: the ranks that were lost, the step from which all go on, and who lacks its state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...core.call import quotes_call
from ...core.grid.layout import Layout
from ...core.recovery.held_state import Sources
from ...core.recovery.regroup import Move, Regrouping
from ...core.text import format_ranks, plural
from ..group_registry import MeshGroups
from .restore import Restoration, restore_state


@dataclass(eq=False)
class Recovery:
    """The last recovery or admission of a mesh, as a rank knows it; empty before the first.

    Attributes:
        mesh: the groups of this rank in the new mesh.
        full_sizes: the sizes of the mesh before its first loss, to which it may grow again.
        regrouped: the ranks that live and their coordinates; None before the first loss.
        sources: the step and the source of each rank that lacks its state.
        lost_ranks: the ranks that were lost, by their numbers before.
        new_ranks: the ranks that were admitted, by their numbers now.
        is_over: on a spare, whether the ranks of the mesh have closed it.
        lacks_state: whether this rank is inside the mesh without the state of its coordinate.
    """

    mesh: MeshGroups
    full_sizes: Mapping[str, int]
    regrouped: Regrouping | None = None
    sources: Sources = field(default_factory=lambda: Sources(None, {}, ()))
    lost_ranks: Sequence[int] = ()
    new_ranks: Sequence[int] = ()
    is_over: bool = False
    lacks_state: bool = False

    @classmethod
    def of(
        cls,
        mesh: MeshGroups,
        full_sizes: Mapping[str, int],
        regrouped: Regrouping,
        sources: Sources,
        num_ranks: int,
    ) -> Recovery:
        """Return the recovery of a rank in a job that had so many ranks before.

        The rank lacks its state if it has a source.
        """
        lost = [rank for rank in range(num_ranks) if rank not in regrouped.new_rank_of]
        new = [rank for rank, old in enumerate(regrouped.old_ranks) if old >= num_ranks]
        lacks = mesh.rank in sources.by_rank
        return cls(mesh, full_sizes, regrouped, sources, lost, new, lacks_state=lacks)

    @property
    def step(self) -> int:
        """The number of completed optimizer steps from which all ranks go on, equal on every rank.

        0 if no rank passed a step.
        """
        return self.sources.step or 0

    @property
    def is_inside(self) -> bool:
        """Whether this rank is in the new mesh."""
        return self.mesh.rank in self.mesh.plan.layout

    @property
    def old_ranks(self) -> Sequence[int]:
        """The number of each rank before the recovery; empty before the first.

        Ranks that were admitted are numbered after all ranks before.
        """
        return () if self.regrouped is None else self.regrouped.old_ranks

    @property
    def moves(self) -> Sequence[Move]:
        """The ranks whose coordinate has changed, equal on every rank."""
        return () if self.regrouped is None else self.regrouped.moves

    @property
    def layout_before(self) -> Layout | None:
        """The layout with the lost ranks; None before the first recovery."""
        return None if self.regrouped is None else self.regrouped.before

    @quotes_call("mesh.recovery.restore")
    def restore(self, *objects: object, held: Sequence[object] | None = None) -> None:
        """Bring models, optimizers and dicts to the state of :attr:`step`. Collective.

        All ranks that live call it with the same objects, spares too. A rank that is behind, or new
        in its place, gets the state of a rank that holds it, over the default group. Other ranks
        keep theirs. Before the first recovery nothing happens.

        Objects that were built again on the new mesh are empty: then ``held`` has the old ones. A
        rank copies its own state from there, and sends it from there. Each rank
        sends its own shard of a DTensor. Gradients are not restored, so clear them.

        Call it inside ``mesh.guard``: if a rank is lost meanwhile, the guard raises as usual. The
        ranks that still lack their state are then known to the next recovery.

        Cost: one message per tensor to each rank that lacks its state.

        Args:
            *objects: modules, optimizers, or anything else with ``state_dict`` and
                ``load_state_dict``; or dicts, which are changed in place. States hold tensors,
                numbers, texts, None, lists, tuples and dicts.
            held: the objects that hold the state of before, one for each; None means that the
                objects hold it themselves.

        Raises:
            MeshkitError: the same on every rank, if no rank that lives holds a part of the state,
                or a DTensor is sharded over an axis that may shrink, as with FSDP over all ranks.
                It names the step of the checkpoint that is needed.
            SpecError: if an object has no state, or a state holds a value of another type.

        Example:
            ``mesh.recovery.restore(model, optimizer, held=(old_model, old_optimizer))``
        """
        if self.regrouped is None:
            return
        facts = self.mesh, self.regrouped, self.sources, self.lost_ranks, self.lacks_state
        restore_state(Restoration(*facts), objects, held)
        self.lacks_state = False

    def __str__(self) -> str:
        if self.regrouped is None:
            return "no rank was lost"
        before, after = self.regrouped.before.sizes_text, self.regrouped.after.sizes_text
        spares, lost, new = self.regrouped.spares, self.lost_ranks, self.new_ranks
        parts = [
            f"lost {plural('rank', len(lost))} {format_ranks(lost)}" if lost else "",
            f"admitted {plural('rank', len(new))} {format_ranks(new)}" if new else "",
            "" if lost or new else "lost no rank",
            f"{before} -> {after}",
            f"{len(self.moves)} moved",
            f"{plural('spare', len(spares))} {format_ranks(spares)}" if spares else "",
            f"from step {self.step}",
        ]
        return ", ".join(part for part in parts if part)
