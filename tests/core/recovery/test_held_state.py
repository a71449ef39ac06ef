"""The step from which all go on, against a search over all steps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshkit import Layout, SpecError
from meshkit.core.regroup import Regrouping, find_sources, regroup
from tests.laws.derivations import law


@st.composite
def states(draw: st.DrawFn) -> tuple[Regrouping, dict[int, int | None]]:
    """Return the ranks that live, with steps that differ by up to 2; some hold no state."""
    layout = Layout(dp=draw(st.integers(1, 4)), sp=draw(st.integers(1, 2)), tp=2)
    members = draw(
        st.sets(st.sampled_from(range(layout.num_ranks + 2)), min_size=layout.size("sp", "tp"))
    )
    regrouped = regroup(layout, sorted(members))
    assert regrouped is not None
    inside = [rank for rank in sorted(members) if rank in layout]
    held = {rank: draw(st.integers(4, 6)) for rank in inside if draw(st.booleans())}
    return regrouped, held


def holders_at(regrouped: Regrouping, held: dict[int, int | None], unit: dict[str, int]) -> set:
    before = regrouped.before
    return {
        held[rank]
        for rank in held
        if {axis: before.coordinate(rank)[axis] for axis in ("sp", "tp")} == unit
    }


@law
@given(states())
def test_the_most_advanced_step_that_all_parts_have_wins(
    case: tuple[Regrouping, dict[int, int | None]],
) -> None:
    regrouped, held = case
    units = [{"sp": sp, "tp": tp} for sp in range(regrouped.before.size("sp")) for tp in range(2)]
    known = [steps for unit in units if (steps := holders_at(regrouped, held, unit))]
    common = [step for step in (6, 5, 4) if all(step in steps for steps in known)]
    if known and not common:
        with pytest.raises(SpecError, match="no step is held for each part"):
            find_sources(regrouped, held)
        return
    sources = find_sources(regrouped, held)
    assert sources.step == (common[0] if known else None)
    assert [*sources.lost] == [u for u in units if not holders_at(regrouped, held, u)]
    for rank in range(regrouped.after.num_ranks + len(regrouped.spares)):
        old = regrouped.old_ranks[rank]
        if rank not in regrouped.after:
            assert rank not in sources.by_rank
            continue
        unit = {axis: regrouped.after.coordinate(rank)[axis] for axis in ("sp", "tp")}

        def has_it(old: int, unit: dict[str, int] = unit) -> bool:
            at = regrouped.before.coordinate(old) if old in held else {}
            return bool(at) and at == {**at, **unit} and held[old] == sources.step

        if rank in sources.by_rank:
            assert not has_it(old)
            assert has_it(regrouped.old_ranks[sources.by_rank[rank]])
        else:
            assert has_it(old) or unit in sources.lost


def test_ranks_without_a_step_are_named() -> None:
    regrouped = regroup(Layout(dp=2, tp=2), [0, 1, 3])
    assert regrouped is not None
    with pytest.raises(SpecError, match="rank 1 gives no step, and other ranks do"):
        find_sources(regrouped, {0: 4, 1: None, 3: 4})


def test_without_any_step_only_ranks_in_a_new_place_get_the_state() -> None:
    regrouped = regroup(Layout(dp=3), [0, 2])
    assert regrouped is not None
    sources = find_sources(regrouped, {0: None, 2: None})
    assert (sources.step, dict(sources.by_rank), sources.lost) == (None, {}, ())


def test_the_senders_take_turns() -> None:
    regrouped = regroup(Layout(dp=4), range(4))
    assert regrouped is not None
    assert dict(find_sources(regrouped, {0: 9, 1: 9}).by_rank) == {2: 0, 3: 1}
