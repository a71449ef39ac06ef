"""Device and backend, on a fake accelerator."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

import meshkit
from meshkit.launch import device, join
from meshkit.launch.device import ACCELERATORS


class DeviceModule:
    """A device module of torch for some devices, which records the devices made current."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.current: list[int] = []

    def device_count(self) -> int:
        return self.count

    def set_device(self, index: int) -> None:
        self.current.append(index)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> DeviceModule:
    """Let torch see four cuda devices."""
    accelerator = SimpleNamespace(
        is_available=lambda: True, current_accelerator=lambda: torch.device("cuda")
    )
    module = DeviceModule(4)
    monkeypatch.setattr(device.torch, "accelerator", accelerator)
    monkeypatch.setattr(device.torch, "get_device_module", lambda _: module)
    return module


def make_available(monkeypatch: pytest.MonkeyPatch, *backends: str) -> None:
    """Let torch have these backends only."""
    monkeypatch.setattr(device.dist, "is_backend_available", lambda name: name in backends)


def test_every_row_has_a_device_of_its_own_and_backends() -> None:
    assert len({row.device for row in ACCELERATORS}) == len(ACCELERATORS)
    assert all(row.backends for row in ACCELERATORS)


@pytest.mark.parametrize(
    ("requested", "local_rank", "count", "selected"),
    [
        (None, 3, 4, "cuda:3"),
        ("cuda:1", 3, 4, "cuda:1"),
        ("cuda", 3, 1, "cuda:0"),  # each rank sees its own device
        (None, 3, 0, "cpu"),
        ("cpu", 3, 4, "cpu"),
        (None, None, 4, "cuda"),  # without an index, until the local rank is known
        ("cuda", None, 4, "cuda"),
        ("cuda:1", None, 4, "cuda:1"),
        (None, None, 1, "cuda:0"),
    ],
)
def test_the_local_rank_is_the_index_of_the_accelerator(
    cuda: DeviceModule, requested: str | None, local_rank: int | None, count: int, selected: str
) -> None:
    cuda.count = count
    expected = torch.device(selected)
    assert device.select_device(requested, local_rank) == expected
    assert cuda.current == ([] if expected.index is None else [expected.index])


def test_a_local_rank_without_a_device_raises(cuda: DeviceModule) -> None:
    with pytest.raises(meshkit.LaunchError):
        device.select_device(None, 4)
    assert cuda.current == []


@pytest.mark.parametrize("built", [False, True])
def test_a_torch_that_is_built_without_cuda_is_named(
    cuda: DeviceModule, monkeypatch: pytest.MonkeyPatch, built: bool
) -> None:
    cuda.count = 0
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: built)
    with pytest.raises(meshkit.LaunchError) as caught:
        device.select_device("cuda", 0)
    named = f"This torch {torch.__version__} is built without cuda." in caught.value.evidence
    assert named is not built
    assert ("a torch built with cuda" in str(caught.value.fix)) is not built


def test_the_device_is_chosen_once_the_local_rank_is_known(cuda: DeviceModule) -> None:
    """Ranks without a known index claim no device."""
    world = meshkit.detect({}, rank=3, world_size=4)
    world = join._select_device(world, "gloo", None)
    assert (str(world.device), cuda.current, join.device_claim(world)) == ("cuda", [], {})
    with pytest.raises(meshkit.LaunchError, match="4 cuda devices") as caught:
        join._prepare(world, {})
    assert "LOCAL_RANK" in caught.value.fix_text
    with mock.patch.dict(os.environ):
        placed = join._prepare(replace(world, local_rank=2), {})
    assert placed.device == torch.device("cuda:2")
    assert cuda.current == [2]


def test_a_requested_device_needs_no_detection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "accelerator", None)
    assert device.select_device("cpu", 3) == torch.device("cpu")


@pytest.mark.parametrize("requested", [b"cpu", 0, "", "toaster", ["cpu"], 1.5])
def test_invalid_devices(requested: object) -> None:
    with pytest.raises(meshkit.LaunchError):
        device.select_device(requested, 0)


def test_a_bridge_that_cannot_be_imported_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> None:
        raise OSError("libhcl.so")

    monkeypatch.setattr(device, "import_module", fail)
    with pytest.raises(meshkit.LaunchError) as caught:
        device.load_bridge("npu", 0)
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize(
    ("kind", "backend", "allowed", "version", "shared"),
    [
        ("cuda", "gloo", "", (0,), True),
        ("cuda", "nccl", "", (2, 30, 3), False),
        ("cuda", "nccl", "1", (2, 30, 3), True),
        ("cuda", "nccl", "1", (2, 28, 9), False),  # this NCCL does not read the variable
        ("cuda", "nccl", "1", (0,), False),
        ("cuda", "nccl2", "", (2, 30, 3), False),
        ("cuda", "nccl-lazy", "1", (2, 30, 3), True),
        ("hpu", "hccl", "1", (2, 30, 3), False),
    ],
)
def test_several_ranks_may_share_a_device_unless_the_backend_is_exclusive(
    kind: str,
    backend: str,
    allowed: str,
    version: tuple[int, ...],
    shared: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", allowed)
    monkeypatch.setattr(device, "nccl_version", lambda: version)
    assert device.can_share_device(kind, backend) is shared


@pytest.mark.parametrize(
    ("kind", "backends", "selected"),
    [
        *((row.device, row.backends, row.backends[0]) for row in ACCELERATORS),
        ("xpu", ("ccl",), "ccl"),  # an older one replaces a missing one
        ("cpu", ("gloo",), "gloo"),
        ("toaster", ("gloo",), "gloo"),
    ],
)
def test_the_table_gives_the_backend_if_torch_has_no_default(
    kind: str, backends: tuple[str, ...], selected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(_: object) -> str:
        raise ValueError("Default backend not registered for device")

    monkeypatch.setattr(device.dist, "get_default_backend_for_device", unknown)
    make_available(monkeypatch, *backends)
    assert device.select_backend(None, SimpleNamespace(type=kind)) == selected  # type: ignore[arg-type]


def backend_of_new_accelerator() -> str:
    """Register a backend as the package of an accelerator does; return the selected one."""
    device.dist.Backend.register_backend("fancy", lambda *_: None, devices=["privateuseone"])
    return device.select_backend(None, torch.device("privateuseone"))


def test_an_accelerator_without_a_row_works() -> None:
    assert meshkit.spawn(backend_of_new_accelerator, 1) == ["fancy"]


def test_gloo_replaces_a_missing_nccl_unless_it_is_requested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_available(monkeypatch, "gloo")
    monkeypatch.setattr(device.dist, "get_default_backend_for_device", lambda _: "nccl")
    with pytest.warns(RuntimeWarning, match="has no backend nccl; collectives use gloo"):
        assert device.select_backend(None, torch.device("cuda")) == "gloo"
    with pytest.raises(meshkit.LaunchError):
        device.select_backend("nccl", torch.device("cuda"))
    monkeypatch.setattr(device.dist, "get_default_backend_for_device", lambda _: "xccl")
    with pytest.raises(meshkit.LaunchError):  # gloo cannot
        device.select_backend(None, torch.device("xpu"))


@pytest.mark.parametrize(
    ("backend", "parts"),
    [
        ("gloo", {"cpu": "gloo", "cuda": "gloo"}),
        (" CPU:gloo, cuda:gloo", {"cpu": "gloo", "cuda": "gloo", "xpu": ""}),
    ],
)
def test_one_backend_per_device_type(backend: str, parts: dict[str, str]) -> None:
    """Blanks and capitals are accepted."""
    name = device.select_backend(backend, torch.device("cpu"))
    assert {kind: device.backend_for(name, kind) for kind in parts} == parts


@pytest.mark.parametrize(
    "backend",
    [
        *("a:b:gloo", ":gloo", "gloo,gloo", "cpu:gloo,cpu:gloo", "cpu:gloo,gloo", "", ","),
        *("undefined", "smoke", 0, {}, b"gloo", "cuda:gloo", "cpu:gloo,cuda:smoke", "hccl"),
    ],
)
def test_invalid_backends(backend: object) -> None:
    with pytest.raises(meshkit.LaunchError):
        device.select_backend(backend, torch.device("cpu"))  # type: ignore[arg-type]


def test_a_backend_without_collectives_on_the_cpu_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    names = "nccl", "nccl2", "nccl-legacy", "xccl", "rccl"
    make_available(monkeypatch, "gloo", "ccl", *names)
    for name in names:
        with pytest.raises(meshkit.LaunchError):
            device.select_backend(name, torch.device("cpu"))
    assert device.select_backend("cpu:gloo,cuda:nccl", torch.device("cpu"))
    capability = device.dist.Backend.backend_capability
    monkeypatch.setitem(capability, "ccl", ["xpu", "cpu"])  # as oneCCL's package registers it
    assert device.select_backend("ccl", torch.device("cpu"))


@pytest.mark.parametrize(
    ("backend", "parts"),
    [
        *((name, {"": name}) for name in ("nccl", "nccl2", "nccl-legacy", "nccl-lazy", "rccl")),
        *((name, {"": name}) for name in ("hccl", "xccl", "ccl", "cncl", "mccl", "eccl", "ncclx")),
        *((name, {}) for name in ("gloo", "ucc", "mpi", "fake", "undefined", "rehearsal", "")),
        ("NCCL", {"": "nccl"}),
        ("cpu:gloo,cuda:nccl", {"cuda": "nccl"}),
        ("cpu:gloo, cuda:nccl-lazy", {"cuda": "nccl-lazy"}),
        ("cpu:ccl,xpu:xccl", {"cpu": "ccl", "xpu": "xccl"}),
        ("cpu:gloo,mlu:cncl", {"mlu": "cncl"}),
        ("cpu:gloo,cuda:gloo", {}),
        ("cuda:mpi", {}),
    ],
)
def test_one_function_tells_backends_like_nccl_from_others(
    backend: str, parts: dict[str, str]
) -> None:
    assert device.nccl_parts(backend) == parts


# visible modules, the module that is set, local rank -> the module, or the first words of the error
MODULES = {
    "by local rank": ("4,5,6", None, 1, "5"),
    "set before": ("4,5,6", "6", 1, "6"),
    "all are visible": ("", None, 1, None),
    "named twice": ("4,4", None, 0, "HABANA_VISIBLE_MODULES=4,4 is not a list"),
    "no number": ("4,x", None, 0, "HABANA_VISIBLE_MODULES=4,x is not a list"),
    "unknown, one": ("5", None, None, "5"),
    "unknown, set before": ("4,5", "5", None, "5"),
    "unknown, all are visible": ("", None, None, None),
    "unknown": ("4,5", None, None, "the local rank of this process is unknown"),
    "unicode": ("\u0663", None, 0, "HABANA_VISIBLE_MODULES=\u0663 is not a list"),
    "too few": ("4,5", None, 2, "there is no hpu module for local_rank 2."),
}


@pytest.mark.parametrize("case", MODULES.values(), ids=MODULES)
def test_the_module_of_a_rank_is_selected_before_the_bridge_is_imported(
    case: tuple[str, str | None, int | None, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    visible, before, local_rank, expected = case
    monkeypatch.setattr(device, "import_module", lambda name: None, raising=True)
    monkeypatch.setenv("HABANA_VISIBLE_MODULES", visible)
    monkeypatch.delenv("HLS_MODULE_ID", raising=False)
    if before is not None:
        monkeypatch.setenv("HLS_MODULE_ID", before)
    monkeypatch.setattr(device, "visible_devices", lambda _: 0, raising=True)
    monkeypatch.setattr(device, "parse_device", lambda _: torch.device("meta"), raising=True)
    if expected is not None and not expected.isdecimal():
        with pytest.raises(meshkit.LaunchError, match=re.escape(expected)):
            device.select_device("hpu", local_rank)
        return
    with suppress(meshkit.LaunchError):  # this machine has no such device
        device.select_device("hpu", local_rank)
    assert os.environ.pop("HLS_MODULE_ID", None) == expected
