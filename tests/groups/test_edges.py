"""mesh.edges: a group for each directed edge between neighbors of an axis."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

import meshkit
from meshkit.launch import torch_aborts, torch_groups
from meshkit.layout.group_plan import edge_rounds
from meshkit.testing.faults import Strike, play
from tests import nccl_like
from tests.faults import error_of
from tests.pool import Pool
from tests.promises import BUSY


@given(st.integers(1, 40), st.booleans())
def test_every_edge_is_in_one_round_and_no_rank_twice_in_a_round(size: int, wrap: bool) -> None:
    rounds = edge_rounds(size, wrap=wrap)
    edges = [edge for of_round in rounds for edge in of_round]
    steps = range(size if wrap else size - 1)
    pairs = {(a, (a + 1) % size) for a in steps if a != (a + 1) % size}
    assert {*edges} == pairs | {(b, a) for a, b in pairs}
    assert len({*edges}) == len(edges)
    for of_round in rounds:
        ends = [end for edge in of_round for end in edge]
        assert len({*ends}) == len(ends) > 0
    firsts = [of_round[0] for of_round in rounds]
    assert len({*firsts}) == len(firsts)
    line = edge_rounds(size)
    assert rounds[: len(line)] == line


RANKS = 6  # of the pool


def use_edges() -> Any:
    """Send around a ring and along a line, with each message in the group of its edge."""
    mesh = meshkit.build_mesh(dp=2, pp=3, timeout={"pp": 40})
    before = dist.get_pg_count()
    line = mesh.edges("pp")
    created = dist.get_pg_count() - before
    ring = mesh.edges("pp", wrap=True)
    again = mesh.edges("pp", wrap=True)
    view = mesh.view(stage=3, data=2)
    count = dist.get_pg_count()
    other = view.edges("stage")
    own, got, works = mesh.coordinate["pp"], [], []
    for source, target in ((own, (own + 1) % 3), ((own - 1) % 3, own)):
        group = ring[source, target]
        peer = mesh.neighbor("pp", 1 if source == own else -1)
        tensor = torch.full((1,), float(mesh.rank))
        if source == own:
            works.append(dist.isend(tensor, peer, group))
        else:
            works.append(dist.irecv(tensor, peer, group))
            got.append((tensor, peer))
    for work in works:
        work.wait()  # type: ignore[union-attr]
    facts = (
        sorted(line),
        sorted(ring),
        created > 0,
        all(ring[edge] is line[edge] is again[edge] for edge in line),
        len({*ring.values()}) == len(ring),
        mesh.edges("tp"),
        {torch_aborts.timeout_of(group) for group in ring.values()} == {timedelta(seconds=40)},
        all(group is other[edge] for edge, group in line.items()),
        count == dist.get_pg_count(),
    )
    mesh.barrier()
    report = str(mesh.groups_report())
    mesh.close()
    alive = all(torch_groups.knows_group(group) for group in other.values())
    view.close()
    gone = not any(map(torch_groups.knows_group, [*other.values(), *ring.values()]))
    return facts, int(got[0][0]) == got[0][1], "pp edges" in report, alive, gone


def test_each_direction_of_each_pair_of_neighbors_has_a_group_of_its_own(pool: Pool) -> None:
    for rank, (facts, received, reported, alive, gone) in enumerate(pool.run(use_edges)):
        stage = rank // 2
        line, ring, created, same, distinct, absent, limits, shared, kept = facts
        expected = [(0, 1), (1, 0), (1, 2), (2, 1)]
        assert line == [edge for edge in expected if stage in edge]
        assert ring == sorted(e for e in (*expected, (2, 0), (0, 2)) if stage in e)
        assert (created, same, distinct, absent, limits) == (True, True, True, {}, True)
        assert (shared, kept) == (True, True)
        assert (received, reported, alive, gone) == (True, True, True, True)


def refuse() -> Any:
    """Request edges that there are not, and other ones on one rank."""
    mesh = meshkit.build_mesh(dp=2, pp=3)
    closed = meshkit.build_mesh(dp=6)
    closed.close()
    wrong: list[Any] = [
        lambda: mesh.edges("zz"),
        lambda: mesh.edges("dp pp"),
        lambda: mesh.edges(3),  # type: ignore[arg-type]
        lambda: mesh.edges("pp", wrap=1),  # type: ignore[arg-type]
        lambda: closed.edges("dp"),
        lambda: mesh.edges("pp", wrap=mesh.rank == 2),
        lambda: mesh.edges("pp" if mesh.rank else "dp"),
    ]
    kinds = [error_of(call)[0] for call in wrong]
    right = sorted(mesh.edges("dp"))
    mesh.close()
    return kinds, right


def test_edges_that_ranks_cannot_have_together_are_refused(pool: Pool) -> None:
    kinds = ["UnknownAxisError", "SpecError", "SpecError", "SpecError", "MeshkitError"]
    kinds += ["DisagreementError"] * 2
    assert pool.run(refuse) == [(kinds, [(0, 1), (1, 0)])] * 6


def use_a_part() -> Any:
    """Create the edges of a mesh over a part of the world, which all ranks help to create."""
    ranks = [5, 3, 2, 0] if torch_groups.KEEPS_ORDER else [0, 2, 3, 5]
    mesh = meshkit.build_mesh(pp=2, dp=2, ranks=ranks)
    edges = mesh.edges("pp")
    members = {edge: dist.get_process_group_ranks(group) for edge, group in edges.items()}
    peers = sorted(mesh.peers("pp").tolist()) if mesh.inside else []
    mesh.close()
    return members, peers


def test_all_ranks_of_the_world_create_the_edges_of_a_part(pool: Pool) -> None:
    for rank, (members, peers) in enumerate(pool.run(use_a_part)):
        inside = rank in (0, 2, 3, 5)
        assert members == ({(0, 1): peers, (1, 0): peers} if inside else {})


def use_world_of_two() -> Any:
    """An edge of two ranks is never the default group, nor that of the axis."""
    meshkit.init()
    mesh = meshkit.build_mesh(pp=2)
    groups = [dist.group.WORLD, mesh.group("pp"), *mesh.edges("pp", wrap=True).values()]
    return len({*groups}), len(groups)


def test_an_edge_is_no_other_group() -> None:
    assert meshkit.spawn(use_world_of_two, 2, timeout=60 + BUSY) == [(3, 4)] * 2


def use_pipeline_on_nccl() -> Any:
    """Send forward and back at once over edges with the semantics of NCCL, unbatched."""
    nccl_like.register()
    meshkit.init(backend="gloo", timeout=50)
    mesh = meshkit.build_mesh(pp=2, dp=2, backend={"pp": nccl_like.NAME})
    edges, peer = mesh.edges("pp"), mesh.neighbor("pp")
    own, other = mesh.coordinate["pp"], 1 - mesh.coordinate["pp"]
    refused = ""
    try:  # one group for both directions
        dist.isend(torch.ones(1), peer, mesh.group("pp"))
        dist.irecv(torch.ones(1), peer, mesh.group("pp"))
    except RuntimeError as error:
        refused = str(error)
    got = torch.zeros(1)
    dist.isend(torch.full((1,), float(mesh.rank)), peer, edges[own, other])
    dist.irecv(got, peer, edges[other, own])
    value = got.item()
    names = {torch_groups.backend_of(group) for group in edges.values()}
    return value == peer, nccl_like.REFUSED in refused, names


def test_a_send_and_a_receive_over_edges_do_not_wait_for_each_other() -> None:
    expected = (True, True, {nccl_like.NAME})
    assert meshkit.spawn(use_pipeline_on_nccl, 4, timeout=60 + BUSY) == [expected] * 4


def wait_for_rank_0(mesh: meshkit.Mesh, work: Callable[[], object]) -> None:
    """Pass a message along the line over the groups of its edges, once rank 0 has done a work."""
    edges = mesh.edges("pp")
    with mesh.guard(timeout=2):
        if mesh.rank == 0:
            work()
        else:
            dist.recv(torch.ones(1), mesh.rank - 1, edges[mesh.rank - 1, mesh.rank])
        if mesh.rank < 2:
            dist.send(torch.ones(1), mesh.rank + 1, edges[mesh.rank, mesh.rank + 1])


def lose_the_first_rank(strike: Strike, kind: str) -> Any:
    """Kill a rank for which others wait over edges, or over groups of a view alone."""
    if kind == "edges":
        wait_for_rank_0(meshkit.build_mesh(pp=3, timeout=50), strike.kill)
        return
    mesh = meshkit.build_mesh(dp=2, tp=2, timeout=50)
    view = mesh.view(dp=2, tp=2, timeout=60)  # of another timeout, so with groups of its own
    with mesh.guard(timeout=2):
        if mesh.rank == 0:
            strike.kill()
        group = view.group("tp" if mesh.rank < 2 else "dp")  # 2 and 3 wait over other pairs
        if mesh.rank == 3:
            group = view.group("tp")
        if mesh.rank == 2:
            group = mesh.group("dp")
        dist.all_reduce(torch.ones(1), group=group)


@pytest.mark.parametrize(("kind", "ranks"), [("edges", 3), ("view", 4)])
def test_the_loss_of_a_rank_ends_all_waits_over_edges_and_views(kind: str, ranks: int) -> None:
    played = play(lose_the_first_rank, ranks, (kind,), timeout=100)
    assert played.fired == 0
    for rank in range(1, ranks):
        outcome = played.outcomes[rank]
        assert (outcome.kind, outcome.missing_ranks) == ("CollectiveError", (0,)), (rank, played)
        assert played.seconds(rank) < 8 + BUSY


def hang_over_an_edge() -> str:
    """Sleep on rank 0 for longer than the guard allows; return the error of the guard."""
    mesh = meshkit.build_mesh(pp=3, timeout=50)
    try:
        wait_for_rank_0(mesh, lambda: time.sleep(14))
    except meshkit.CollectiveError as error:
        return str(error)
    return "no error"


def test_a_hang_over_an_edge_ends_and_names_the_rank_that_is_behind() -> None:
    for text in meshkit.spawn(hang_over_an_edge, 3, timeout=100):
        assert "has begun 0 of 1 collectives over pp edge 0>1; in no collective" in text
        assert "Fix: look at rank 0 first" in text


def limit_later_groups() -> list[float]:
    """Return the timeout, inside a guard, of an edge and of a dim that torch requests later."""
    with meshkit.build_mesh(dp=RANKS) as mesh:
        edge = mesh.edges("dp", wrap=True)[mesh.rank, (mesh.rank + 1) % RANKS]
        later = mesh.device_mesh()._unflatten(0, (2, 3), ("outer", "inner"))  # type: ignore[attr-defined]
        with mesh.guard(timeout=20):
            limits = [torch_aborts.timeout_of(g) for g in (edge, later.get_group("inner"))]
        return [limit.total_seconds() for limit in limits if limit is not None]


def test_a_guard_limits_the_groups_that_were_added_later(pool: Pool) -> None:
    assert pool.run(limit_later_groups) == [[20.0, 20.0]] * RANKS
