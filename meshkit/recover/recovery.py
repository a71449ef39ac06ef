"""The last recovery of a mesh, as a rank knows it, and the restore of its state to one step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..call import quotes_call
from ..groups.registry import MeshGroups
from ..launch.of_one_process import OfOneProcess, keep_whole
from ..launch.regroup import Reassignment, Regrouping, Sources
from ..text import format_ranks, plural
from .restore import Restoration, check_objects, restore_state


@keep_whole
@dataclass(eq=False)
class Recovery(OfOneProcess):
    """The last recovery or admission of a mesh, as a rank knows it; empty before the first.

    Attributes:
        mesh: the groups of this rank in the new mesh.
        full_sizes: the sizes of the mesh before its first loss, to which it may grow again.
        regrouped: the ranks that live and their coordinates; None before the first loss.
        sources: the step, and the source of each rank that lacks its state.
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
        full: Mapping[str, int],
        regrouped: Regrouping,
        sources: Sources,
        num_ranks: int,
    ) -> Recovery:
        """Return the recovery of a rank in a job that had ``num_ranks`` ranks before."""
        lost = [rank for rank in range(num_ranks) if rank not in regrouped.new_rank_of]
        new = [rank for rank, old in enumerate(regrouped.old_ranks) if old >= num_ranks]
        lacks = mesh.rank in sources.by_rank
        return cls(mesh, full, regrouped, sources, lost, new, lacks_state=lacks)

    @property
    def step(self) -> int:
        """The number of completed steps from which all ranks go on; 0 if no rank passed a step."""
        return self.sources.step or 0

    @property
    def old_ranks(self) -> Sequence[int]:
        """The number of each rank before. Newcomers are numbered after all ranks before."""
        return () if self.regrouped is None else self.regrouped.old_ranks

    @property
    def moves(self) -> Sequence[Reassignment]:
        """The ranks whose coordinate has changed."""
        return () if self.regrouped is None else self.regrouped.moves

    @quotes_call("mesh.recovery.restore")
    def restore(self, *objects: object, held: Sequence[object] | None = None) -> None:
        """Bring models, optimizers and dicts to the state of :attr:`step`. Collective.

        All ranks that live call it with the same objects, spares too. A rank that is behind, or has
        a new coordinate, gets the state of a rank that holds it, over the default group. Other
        ranks keep theirs. Before the first recovery nothing happens.

        Objects that were built again on the new mesh are empty: pass the old ones as ``held``. Each
        rank sends its own shard of a DTensor. Gradients are not restored, so clear them.

        Call it inside ``mesh.guard``: if a rank is lost meanwhile, the guard raises as usual. The
        next recovery knows the ranks that still lack their state.

        Cost: the bytes of the state, once in memory and once for each rank that lacks it.

        Args:
            *objects: modules, optimizers, or anything else with ``state_dict`` and
                ``load_state_dict``; or dicts, which are changed in place. States hold tensors,
                numbers, texts, None, lists, tuples and dicts. A NumPy scalar arrives as a number.
            held: for each object the one that holds its state, or None on a newcomer or a spare,
                which has none. None instead of all means the objects themselves.

        Raises:
            MeshkitError: the same on every rank, if no rank that lives holds a part of the state,
                for example under FSDP over all ranks. It names the step of the checkpoint that is
                needed.
            SpecError: if an object has no state, also before the first recovery; if a state holds
                a value of another type; if ``held`` is None where this rank holds the state; if a
                tensor of a module or dict is expanded, so that it cannot be filled.
            DisagreementError: if another rank of the mesh has raised such an error, or one of its
                objects has. No rank has changed its state then, and none waits.

        Example:
            ``mesh.recovery.restore(model, optimizer, held=(old_model, old_optimizer))``
        """
        if self.regrouped is None:
            check_objects(objects, held)
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
