"""Ranks on several hosts: warnings, errors and placement. One machine plays all hosts."""

from __future__ import annotations

import socket
import time
import warnings
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.call import Call
from meshkit.errors import MeshkitError
from meshkit.groups import hosts
from meshkit.groups.hosts import check_crossing
from meshkit.groups.requests import GroupOptions, GroupTimeouts
from meshkit.launch import process
from meshkit.launch.job import Job, Membership
from meshkit.layout.topology import Topology
from tests.faults import error_of
from tests.newer_torch import needs_order
from tests.promises import BUSY
from tests.side_by_side import side_by_side

CYCLIC = ["a", "b", "a", "b"]
BLOCKS = ["a", "a", "b", "b"]


def count_groups() -> int:
    """Return how many groups this process has beside the default group."""
    return len(dist.distributed_c10d._world.pg_map) - 1


def take_host(hosts: Sequence[str]) -> int:
    """Give this rank its host name from the list, and return the rank."""
    rank = meshkit.detect().rank
    patch = pytest.MonkeyPatch()
    patch.setattr(socket, "gethostname", lambda: hosts[rank])
    patch.setattr(process, "machine_id", lambda: hosts[rank])
    return rank


def build_on_hosts(
    hosts: Sequence[str], requests: Sequence[dict[str, Any]], foreign: bool
) -> list[dict[str, Any]]:
    """Build meshes on hosts; return the ranks, warnings or error, and the sum over tp of each."""
    rank = take_host(hosts)
    if foreign:
        method, size = meshkit.detect().init_method, len(hosts)
        dist.init_process_group("gloo", init_method=method, rank=rank, world_size=size)
    return [build_and_sum(request) for request in requests]


def build_and_sum(request: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of one mesh."""
    outcome: dict[str, Any] = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with meshkit.build_mesh(**request) as mesh:
                total = torch.ones(1) * 10**mesh.rank
                if mesh.inside:
                    dist.all_reduce(total, group=mesh.group("tp"))
                    outcome["coordinate"] = mesh.coordinate
                outcome |= {"ranks": [int(rank) for rank in mesh.layout.ranks], "sum": int(total)}
        except MeshkitError as error:
            outcome |= {"error": (type(error).__name__, str(error)), "groups": count_groups()}
    files = [Path(warning.filename).name for warning in caught]
    return {**outcome, "warnings": [str(warning.message) for warning in caught], "files": files}


def build_each(
    hosts: list[str], *requests: dict[str, Any], foreign: bool = False
) -> list[list[dict[str, Any]]]:
    """Return the facts of each mesh on every rank, mesh by mesh."""
    by_rank = meshkit.spawn(build_on_hosts, len(hosts), (hosts, requests, foreign), timeout=60)
    return [[*facts] for facts in zip(*by_rank, strict=True)]


PLAIN = {"dp": 2, "tp": 2}


def test_axes_that_cross_nodes_warn_once_unless_they_may() -> None:
    warns, allowed, no_tp, within = build_each(
        CYCLIC,
        PLAIN,
        {**PLAIN, "crossing": {"tp": "allow"}},
        {"dp": 4, "tp": 1},
        {"within": {"sp": 2}, "across": {"dp": 2}},
    )
    assert "sp crosses nodes: 2 of 2 groups span 2 nodes" in within[0]["warnings"][0]
    (warning,) = warns[0]["warnings"]
    assert warning.startswith("build_mesh(dp=2, tp=2): tp crosses nodes.\n")
    assert warns[0]["files"] == ["test_hosts.py"]  # the line that calls build_mesh
    assert [mesh["ranks"] for mesh in warns] == [[0, 1, 2, 3]] * 4
    assert [mesh["warnings"] for mesh in (*warns[1:], *allowed, *no_tp)] == [[]] * 11


@needs_order
def test_axes_inside_a_node_do_not_warn() -> None:
    inside, dp_warns, near, far, placed = build_each(
        BLOCKS,
        PLAIN,
        {**PLAIN, "crossing": {"tp": "error", "dp": "warn"}},
        {"within": {"tp": 2}, "across": {"dp": 2}, "crossing": {"tp": "error"}},
        {"within": {"dp": 2}, "across": {"tp": 2}, "crossing": {"tp": "allow"}},
        # by the topology, not by the hosts
        {**PLAIN, "place": Topology.of_hosts(CYCLIC), "crossing": {"tp": "error"}},
    )
    assert [mesh["warnings"] for mesh in inside] == [[]] * 4
    assert "dp crosses nodes: 2 of 2 groups span 2 nodes" in dp_warns[0]["warnings"][0]
    assert [mesh["ranks"] for mesh in near] == [[0, 1, 2, 3]] * 4
    assert [mesh["ranks"] for mesh in (*far, *placed)] == [[0, 2, 1, 3]] * 8
    assert [mesh["sum"] for mesh in far] == [101, 1010, 101, 1010]


def build_with_warnings_as_errors(hosts: Sequence[str]) -> tuple[str, float, int]:
    """Build a mesh while warnings are errors; return the error, its time, and the groups left."""
    take_host(hosts)
    meshkit.init()
    began = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        try:
            meshkit.build_mesh(dp=2, tp=2, arrival_timeout=10)
        except (RuntimeWarning, MeshkitError) as error:
            return f"{type(error).__name__}: {error}", time.monotonic() - began, count_groups()
    return "", 0.0, 0


def test_the_other_ranks_quote_a_warning_that_is_an_error() -> None:
    outcomes = meshkit.spawn(build_with_warnings_as_errors, 4, (CYCLIC,), timeout=60)
    assert outcomes[0][0].startswith(
        "RuntimeWarning: build_mesh(dp=2, tp=2, arrival_timeout=10): tp crosses"
    )
    assert [text.partition(":")[0] for text, _, _ in outcomes[1:]] == ["DisagreementError"] * 3
    assert all("tp crosses nodes." in text for text, _, _ in outcomes)
    assert max(seconds for _, seconds, _ in outcomes) < 10
    assert [groups for _, _, groups in outcomes] == [0] * 4


@needs_order
@pytest.mark.parametrize("foreign", [False, True])
def test_an_error_is_the_same_on_every_rank_and_place_avoids_it(foreign: bool) -> None:
    strict = {"crossing": {"tp": "error"}}
    failed, placed = build_each(
        CYCLIC, {**PLAIN, **strict}, {**PLAIN, **strict, "place": True}, foreign=foreign
    )
    ((kind, text),) = {mesh["error"] for mesh in failed}
    assert kind == "SpecError"
    assert "2 of 2 groups span 2 nodes" in text
    assert [mesh["groups"] for mesh in failed] == [0] * 4
    assert [mesh["ranks"] for mesh in placed] == [[0, 2, 1, 3]] * 4
    assert [mesh["sum"] for mesh in placed] == [101, 1010, 101, 1010]  # ranks 0 and 2, 1 and 3
    coordinates = [{"dp": d, "tp": t} for d, t in ((0, 0), (1, 0), (0, 1), (1, 1))]
    assert [mesh["coordinate"] for mesh in placed] == coordinates


@needs_order
def test_part_of_the_world_is_placed_among_its_own_ranks() -> None:
    (outcomes,) = build_each(["x", *CYCLIC], {**PLAIN, "ranks": range(1, 5), "place": True})
    assert outcomes[1]["ranks"] == [1, 3, 2, 4]


def build_different_meshes() -> None:
    """Build meshes that rank 0 places in another way than the others."""
    rank = take_host(CYCLIC)
    for first, others, shown in (
        (True, False, "place=True"),
        (Topology.of_hosts(CYCLIC), Topology.of_hosts(BLOCKS), "place=4 ranks on 2 nodes of 2 ("),
    ):
        place = others if rank else first
        error = error_of(lambda place=place: meshkit.build_mesh(dp=2, tp=2, place=place))
        assert error is not None
        assert error[0] == "DisagreementError"
        assert shown in error[1]


@needs_order
def test_ranks_that_differ_in_place_raise() -> None:
    meshkit.spawn(build_different_meshes, 4, timeout=60)


def delay_rank_0(request: dict[str, Any]) -> tuple[str, float]:
    """Delay rank 0 by 7 s while it looks at the hosts; return the error and the seconds."""
    meshkit.init()
    began = time.monotonic()
    if dist.get_rank() == 0:
        pytest.MonkeyPatch().setattr(hosts, "machines", lambda *_: time.sleep(7) or [])  # type: ignore[func-returns-value]
    try:
        meshkit.build_mesh(**request, arrival_timeout=2)
    except Exception as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - began
    return "", 0.0


@pytest.mark.slow
def test_a_late_rank_0_is_named() -> None:
    """Both jobs mostly wait, so they run at the same time."""
    spawn = partial(meshkit.spawn, delay_rank_0, 4, timeout=120)
    jobs = {
        "place": partial(spawn, args=({"dp": 2, "tp": 2, "place": True},)),
        "crossing": partial(spawn, args=({"tp": 4, "crossing": {"tp": "error"}},)),
    }
    with side_by_side(jobs, at_once=2) as results:
        for name, result in results.items():
            first, *others = result.result()
            for error, seconds in others:
                assert error.startswith("RankTimeoutError: build_mesh("), (name, error)
                assert "the hosts of the ranks" in error
                assert 2 <= seconds < 2 + 5 + BUSY
            assert first[0], name  # rank 0 finds no other rank any more


def test_without_a_store_crossing_error_raises() -> None:
    world = meshkit.detect({})
    job = Job(world, None, None, timedelta(seconds=1), Membership(0, range(1), 1))
    call = Call("build_mesh", kwargs={"tp": 2, "crossing": {"tp": "error"}})
    options = GroupOptions(None, GroupTimeouts(None), {"tp": "warn"})
    layout = meshkit.Layout(tp=2)
    assert check_crossing(layout, options, job, call) is None
    strict = options._replace(crossing={"tp": "error"})
    with pytest.raises(meshkit.SpecError, match="there is no store"):
        check_crossing(layout, strict, job, call)


@pytest.mark.parametrize(
    "options",
    [
        {"crossing": {"tp": "no"}},
        {"crossing": "tp"},
        {"within": {"tp": 1}, "dp": 1},
        {"within": {"tp": 1}, "ranks": [0]},
        {"place": "near"},
        {"place": Topology.even(8, nodes=2)},
    ],
)
def test_invalid_options_raise_before_the_job_is_joined(options: dict[str, Any]) -> None:
    sizes = {} if "within" in options else {"dp": 1, "tp": 1}
    with pytest.raises(meshkit.SpecError):
        meshkit.build_mesh(**{**sizes, **options})
    assert not dist.is_initialized()
