"""Ranks on several hosts: warnings, errors and placement. One machine plays all hosts."""

from __future__ import annotations

import re
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
from meshkit.core.call import Call
from meshkit.core.errors import MeshkitError
from meshkit.launch import process
from meshkit.launch.job import Epoch, Job
from meshkit.live import hosts
from meshkit.live.groups import GroupOptions, GroupTimeouts
from meshkit.live.hosts import check_crossing
from tests.live.newer_torch import needs_order
from tests.live.side_by_side import side_by_side
from tests.promises import BUSY

CYCLIC = ["a", "b", "a", "b"]


BLOCKS = ["a", "a", "b", "b"]


Told = dict[str, Any]


def describe_mesh(mesh: meshkit.Mesh) -> Told:
    ones = torch.ones(1) * 10**mesh.rank
    dist.all_reduce(ones, group=mesh.group("tp"))
    return {
        "ranks": [int(r) for r in mesh.layout.ranks],
        "sum": int(ones),
        "coordinate": mesh.coordinate,
    }


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


def build_on_hosts(hosts: Sequence[str], request: dict[str, Any], foreign: bool) -> Told:
    """Build a mesh on hosts; return its ranks, warnings or error, and the sum over its tp group."""
    rank = take_host(hosts)
    if foreign:
        who = meshkit.detect()
        dist.init_process_group(
            "gloo", init_method=who.init_method, rank=rank, world_size=who.world_size
        )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with meshkit.build_mesh(**request) as mesh:
                outcome = describe_mesh(mesh)
        except MeshkitError as error:
            outcome = {"error": f"{type(error).__name__}: {error}", "groups": count_groups()}
    files = [Path(one.filename).name for one in caught]
    return {**outcome, "warnings": [str(one.message) for one in caught], "files": files}


def built(hosts: list[str], *, foreign: bool = False, **request: Any) -> list[dict[str, Any]]:
    return meshkit.spawn(build_on_hosts, len(hosts), (hosts, request, foreign), timeout=60)


def test_tp_across_nodes_warns_once_with_a_fix() -> None:
    outcomes = built(CYCLIC, dp=2, tp=2)
    assert [one["warnings"] for one in outcomes[1:]] == [[], [], []]
    (warning,) = outcomes[0]["warnings"]
    assert warning.startswith("build_mesh(dp=2, tp=2): tp crosses nodes.\n")
    assert "node 0 has ranks 0, 2." in warning
    assert [one["ranks"] for one in outcomes] == [[0, 1, 2, 3]] * 4
    assert outcomes[0]["files"] == ["test_hosts.py"]  # the line that calls build_mesh


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


def test_no_warning_for_axes_inside_a_node_or_allowed_to_cross() -> None:
    for outcomes in (
        built(BLOCKS, dp=2, tp=2),
        built(CYCLIC, dp=4, tp=1),
        built(CYCLIC, dp=2, tp=2, crossing={"tp": "allow"}),
    ):
        assert [one["warnings"] for one in outcomes] == [[]] * 4


@pytest.mark.parametrize("foreign", [False, True])
def test_an_error_is_the_same_on_every_rank_and_nothing_is_made(foreign: bool) -> None:
    hosts = ["a", "b", "b", "b"]
    outcomes = built(hosts, dp=1, tp=4, crossing={"tp": "error"}, foreign=foreign)
    (error,) = {one["error"] for one in outcomes}
    assert error.startswith(
        "SpecError: build_mesh(dp=1, tp=4, crossing={'tp': 'error'}): tp crosses"
    )
    assert "1 of 1 groups span 2 nodes; ranks 0-3 are on a, b." in error
    assert [one["groups"] for one in outcomes] == [0] * 4


def test_all_ranks_wait_for_the_check_and_build() -> None:
    outcomes = built(BLOCKS, dp=2, tp=2, crossing={"tp": "error", "dp": "warn"})
    assert "error" not in outcomes[0]
    assert "dp crosses nodes: 2 of 2 groups span 2 nodes" in outcomes[0]["warnings"][0]


@needs_order
@pytest.mark.parametrize("foreign", [False, True])
def test_place_puts_tp_on_one_node(foreign: bool) -> None:
    outcomes = built(CYCLIC, dp=2, tp=2, place=True, crossing={"tp": "error"}, foreign=foreign)
    assert [one.get("error") for one in outcomes] == [None] * 4
    assert [one["ranks"] for one in outcomes] == [[0, 2, 1, 3]] * 4
    assert [one["sum"] for one in outcomes] == [101, 1010, 101, 1010]  # ranks 0 and 2, 1 and 3
    assert [one["coordinate"] for one in outcomes] == [
        {"dp": d, "tp": t} for d, t in ((0, 0), (1, 0), (0, 1), (1, 1))
    ]


@needs_order
def test_a_given_topology_replaces_the_host_names() -> None:
    topology = meshkit.Topology.of_hosts(CYCLIC)
    outcomes = built(BLOCKS, dp=2, tp=2, place=topology, crossing={"tp": "error"})
    assert [one.get("error") for one in outcomes] == [None] * 4  # by the topology, not the hosts
    assert [one["ranks"] for one in outcomes] == [[0, 2, 1, 3]] * 4


@needs_order
def test_sizes_within_and_across_nodes() -> None:
    outcomes = built(BLOCKS, within={"tp": 2}, across={"dp": 2}, crossing={"tp": "error"})
    assert [one["ranks"] for one in outcomes] == [[0, 1, 2, 3]] * 4
    outcomes = built(BLOCKS, within={"dp": 2}, across={"tp": 2}, crossing={"tp": "allow"})
    assert [one["ranks"] for one in outcomes] == [[0, 2, 1, 3]] * 4
    assert [one["sum"] for one in outcomes] == [101, 1010, 101, 1010]


def test_sizes_within_nodes_beside_ranks() -> None:
    with pytest.raises(meshkit.SpecError, match="gives ranks beside within and across"):
        meshkit.build_mesh(within={"tp": 1}, ranks=[0])


@needs_order
def test_part_of_the_world_is_placed_among_its_own_ranks() -> None:
    outcomes = built(["x", *CYCLIC], dp=2, tp=2, ranks=range(1, 5), place=True)
    assert outcomes[1]["ranks"] == [1, 3, 2, 4]


def build_different_meshes(hosts: Sequence[str], requests: Sequence[dict[str, Any]]) -> str:
    """Build a different mesh on each rank; return the error."""
    rank = take_host(hosts)
    try:
        meshkit.build_mesh(**requests[rank])
    except meshkit.MeshkitError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_ranks_that_differ_in_place_raise() -> None:
    plain = {"dp": 2, "tp": 2}
    requests = [{**plain, "place": rank != 1} for rank in range(4)]
    outcomes = meshkit.spawn(build_different_meshes, 4, (CYCLIC, requests), timeout=60)
    assert len(set(outcomes)) == 1
    first, request, odd, fix = outcomes[0].splitlines()
    assert first == (
        "DisagreementError: ranks disagree about the mesh; no process group was created."
    )
    assert request == "  ranks 0 and 2-3:  dp=2 tp=2, place=True"
    assert re.fullmatch(r"  rank 1 \(host b, pid \d+\):  dp=2 tp=2, place=False", odd)
    assert fix == "  Fix: pass equal place on every rank."


@needs_order
def test_ranks_that_differ_in_topology_raise() -> None:
    requests = [
        {"dp": 2, "tp": 2, "place": meshkit.Topology.of_hosts(BLOCKS if rank else CYCLIC)}
        for rank in range(4)
    ]
    outcomes = meshkit.spawn(build_different_meshes, 4, (CYCLIC, requests), timeout=60)
    assert len(set(outcomes)) == 1
    assert "place=4 ranks on 2 nodes of 2 (" in outcomes[0]


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


def test_an_axis_given_within_a_node_warns_if_it_crosses() -> None:
    outcomes = built(["a", "b", "c", "d"], within={"sp": 2}, across={"dp": 2})
    assert "sp crosses nodes: 2 of 2 groups span 2 nodes" in outcomes[0]["warnings"][0]


def test_without_a_store_crossing_error_raises() -> None:
    world = meshkit.detect({})
    job = Job(world, None, None, timedelta(seconds=1), Epoch(0, range(1), 1))
    call = Call("build_mesh", kwargs={"tp": 2, "crossing": {"tp": "error"}})
    options = GroupOptions(None, GroupTimeouts(None), {"tp": "warn"})
    layout = meshkit.Layout(tp=2)
    assert check_crossing(layout, options, job, call, 0) is None
    strict = options._replace(crossing={"tp": "error"})
    with pytest.raises(meshkit.SpecError, match="there is no store"):
        check_crossing(layout, strict, job, call, 0)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"crossing": {"tp": "no"}}, "crossing of tp is 'no'"),
        ({"crossing": "tp"}, "crossing is 'tp', a str"),
        ({"within": {"tp": 1}, "ranks": [0]}, "gives dp, tp in addition to within and across"),
        ({"place": "near"}, "place is 'near'"),
        ({"place": meshkit.Topology.even(8, nodes=2)}, "place has 8 ranks, the world has 1"),
    ],
)
def test_invalid_options_raise_before_the_job_is_joined(
    options: dict[str, Any], error: str
) -> None:
    with pytest.raises(meshkit.SpecError, match=error):
        meshkit.build_mesh(dp=1, tp=1, **options)
    assert not dist.is_initialized()
