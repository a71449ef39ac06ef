"""A backend and options for the groups over single axes, and who shares such groups."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.groups import backends
from meshkit.groups.backends import GroupBackend, backends_by_key, parse_backends
from meshkit.launch import torch_aborts, torch_groups
from meshkit.launch.torch_groups import backend_of, copy_options, timeout_of_options
from meshkit.layout.group_plan import GroupPlan
from tests import nccl_like
from tests.faults import error_of
from tests.promises import BUSY

NAME = nccl_like.NAME
PLAN = GroupPlan.of(meshkit.Layout(pp=2, dp=4, sp=2, tp=1), ["dp tp"])


class Options:
    """Options of a backend, as torch's are: a timeout, a few facts, and what torch writes."""

    def __init__(self) -> None:
        self._timeout = timedelta(minutes=10)
        self.is_high_priority_stream = False
        self.group_name = ""


OPTIONS = Options()
GLOO = dist.ProcessGroupGloo._Options()


# ------------------------------------------------------------ the request


@pytest.mark.parametrize(
    ("backend", "expected"),
    [
        (None, (None, {})),
        ("gloo", ("gloo", {})),
        ("CPU:gloo", ("cpu:gloo", {})),
        ({}, (None, {})),
        ({"pp": "gloo"}, (None, {("pp",): GroupBackend("gloo")})),
        ({"dp sp": "GLOO"}, (None, {("dp", "sp"): GroupBackend("gloo")})),
        ({("dp", "sp"): OPTIONS}, (None, {("dp", "sp"): GroupBackend(None, OPTIONS)})),
        ({"pp": ("gloo", GLOO)}, (None, {("pp",): GroupBackend("gloo", GLOO)})),
        ({"tp": "gloo"}, (None, {("tp",): GroupBackend("gloo")})),
        ({"ep": "gloo"}, (None, {("ep",): GroupBackend("gloo")})),  # absent, of size 1
    ],
)
def test_a_backend_is_one_name_or_one_for_some_axes(backend: object, expected: object) -> None:
    assert parse_backends(PLAN, backend) == expected


@pytest.mark.parametrize(
    ("backend", "error", "text"),
    [
        ({"qq": "gloo"}, meshkit.UnknownAxisError, "qq"),
        ({"pp dp": "gloo"}, meshkit.SpecError, "no group over pp dp"),
        ({"pp": "smoke"}, meshkit.LaunchError, "no backend 'smoke'"),
        ({"pp": None}, meshkit.SpecError, "the backend for pp is None"),
        ({"pp": 3}, meshkit.SpecError, "the backend for pp is 3"),
        ({"pp": ("gloo", None)}, meshkit.SpecError, "the backend for pp is"),
        ({"pp": (OPTIONS, "gloo")}, meshkit.SpecError, "the backend for pp is"),
        ({"dp": "gloo", "dp tp": "fake"}, meshkit.SpecError, "over dp and over dp tp are the same"),
        (3, meshkit.LaunchError, "backend is 3"),
        (["gloo"], meshkit.LaunchError, "backend is"),
    ],
)
def test_an_invalid_backend_is_refused(backend: object, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        parse_backends(PLAN, backend)
    assert text in str(caught.value)


def test_equal_groups_may_be_named_twice_with_one_backend() -> None:
    _, by_axes = parse_backends(PLAN, {"dp": "gloo", "dp tp": "gloo", "tp": "gloo"})
    assert backends_by_key(PLAN, by_axes) == {
        ("dp",): GroupBackend("gloo"),
        ("tp",): GroupBackend("gloo"),
    }


def test_a_view_inherits_the_backends_of_equal_groups() -> None:
    given = {("dp",): GroupBackend("gloo"), ("tp",): GroupBackend("fake")}
    view = GroupPlan.of(meshkit.Layout(pp=2, replicate=2, shard=2, sp=2, tp=1), ["replicate shard"])
    assert backends.inherit_backends(PLAN, given, view, {}) == {
        ("replicate", "shard"): GroupBackend("gloo"),
        ("tp",): GroupBackend("fake"),
    }
    own = {("replicate", "shard"): GroupBackend("fake")}
    assert backends.inherit_backends(PLAN, given, view, own)["replicate", "shard"].name == "fake"


# ------------------------------------------------------------ torch's options


@pytest.mark.parametrize("options", [OPTIONS, GLOO], ids=["deepcopy", "gloo, which has none"])
def test_options_are_copied_for_each_group(options: Any) -> None:
    limit = timedelta(seconds=33)
    before = options._timeout
    first, second = (copy_options(options, limit) for _ in range(2))
    assert first is not second
    first.group_name = "0"  # type: ignore[attr-defined]
    assert (second.group_name, options.group_name, options._timeout) == ("", "", before)  # type: ignore[attr-defined]
    assert first._timeout == limit  # type: ignore[attr-defined]
    assert copy_options(None, limit) is None


def test_only_a_timeout_that_was_set_counts() -> None:
    for options in (Options(), dist.ProcessGroupGloo._Options()):
        assert torch_groups.is_options(options)
        assert timeout_of_options(options) is None
        options._timeout = timedelta(seconds=7)
        assert timeout_of_options(options) == timedelta(seconds=7)
    assert timeout_of_options(None) is timeout_of_options("gloo") is None


# ------------------------------------------------------------ live groups


def build() -> Any:
    """Build meshes and views with backends of single axes, and use each group."""
    nccl_like.register()
    meshkit.init(backend="gloo", timeout=50)
    refused = error_of(lambda: meshkit.build_mesh(pp=2, dp=2, backend={"zz": "gloo"}))
    names_of = {"pp": NAME, "tp": NAME, "sp": NAME, "ep": NAME}
    mesh = meshkit.build_mesh(pp=2, dp=2, tp=1, sp=1, backend=names_of)
    names = {axis: backend_of(mesh.group(axis)) for axis in ("pp", "dp", "tp", "sp", "ep", "cp")}
    names["all"] = backend_of(mesh.group())
    totals = []
    for axis in ("pp", "dp", "tp"):
        tensor = torch.full((2,), float(mesh.rank))
        dist.all_reduce(tensor, group=mesh.group(axis))
        totals.append(tensor[0].item())
    view, other, plain = (
        mesh.view(stage=2, data=2),
        mesh.view(stage=2, data=2, backend={"stage": "gloo"}),
        mesh.view(backend="gloo"),
    )
    dims = mesh.device_mesh("pp dp")
    shared = [
        view.group("stage") is mesh.group("pp"),  # as it inherits the backend
        other.group("stage") is mesh.group("pp"),
        other.group("data") is mesh.group("dp"),
        plain.group("pp") is mesh.group("pp"),
        plain.group("pp") is other.group("stage"),
        dims["pp"].get_group() is mesh.group("pp"),
        mesh.group("tp") is mesh.group("sp"),  # one rank, one backend
        mesh.group("tp") is mesh.group("cp"),
    ]
    mesh.verify(timeout=30)
    kinds = {entry.backend for entry in mesh.groups_report().groups}
    for one in (plain, other, view, mesh):
        one.close()
    return refused, names, totals, shared, kinds


def test_the_groups_of_an_axis_have_its_backend_and_are_shared_only_with_equal_ones() -> None:
    for rank, (refused, names, totals, shared, kinds) in enumerate(
        meshkit.spawn(build, 4, timeout=60 + BUSY)
    ):
        assert refused[0] == "UnknownAxisError"
        special = {"pp": NAME, "tp": NAME, "sp": NAME, "ep": NAME}
        assert names == {**special, "dp": "gloo", "cp": "gloo", "all": "gloo"}
        assert totals == [rank % 2 * 2 + 2.0, rank // 2 * 4 + 1.0, float(rank)]
        assert shared == [True, False, True, False, True, True, True, False]
        assert kinds == {"gloo", NAME}


def give_options() -> Any:
    """Give one options object to the groups of two axes."""
    nccl_like.register()
    meshkit.init(backend=NAME, device="cpu", timeout=50)
    options = Options()
    options.is_high_priority_stream = True
    mesh = meshkit.build_mesh(pp=2, dp=2, backend={"pp": options, "dp": options})
    made = [(o.group_name, o.is_high_priority_stream, o._timeout) for o in nccl_like.OPTIONS]
    limits = [torch_aborts.timeout_of(mesh.group(axis)) for axis in ("pp", "dp")]
    view = mesh.view(backend={"pp": options})
    same = view.group("pp") is mesh.group("pp")
    options.is_high_priority_stream = False
    third = mesh.view(backend={"pp": options})
    other = third.group("pp") is not mesh.group("pp")
    names = [mesh.group(axis).group_name for axis in ("pp", "dp")]
    for one in (third, view, mesh):
        one.close()
    return made, limits, same, other, options.group_name, names


def test_each_group_gets_a_copy_of_the_options() -> None:
    for made, limits, same, other, untouched, names in meshkit.spawn(
        give_options, 4, timeout=60 + BUSY
    ):
        limit = timedelta(seconds=50)
        assert made == [(name, True, limit) for name in names]
        assert limits == [limit] * 2
        assert (same, other, untouched) == (True, True, "")


def disagree() -> Any:
    """Request another backend for an axis on one rank."""
    rank = meshkit.init(arrival_timeout=20).rank
    began = time.monotonic()
    backend = {"tp": "fake"} if rank else {"tp": "gloo"}
    text = error_of(lambda: meshkit.build_mesh(dp=1, tp=2, backend=backend))
    assert time.monotonic() - began < 10 + BUSY
    return text


def test_ranks_that_request_other_backends_disagree() -> None:
    for kind, text in meshkit.spawn(disagree, 2, timeout=60):
        assert (kind, "gloo, tp fake" in text) == ("DisagreementError", True), text
