"""Device and backend, with accelerators played by a stand-in for torch's own."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import meshkit
from meshkit.core.call import Call
from meshkit.launch.device import device
from meshkit.launch.device.accelerators import ACCELERATORS

CALL = Call("init")


class Module:
    """What torch.cuda would be on a machine with some devices; remembers what was made current."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.current: list[int] = []

    def device_count(self) -> int:
        return self.count

    def set_device(self, index: int) -> None:
        self.current.append(index)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Module:
    """A machine with four visible cuda devices."""
    accelerator = SimpleNamespace(
        is_available=lambda: True, current_accelerator=lambda: torch.device("cuda")
    )
    module = Module(4)
    monkeypatch.setattr(device.torch, "accelerator", accelerator)
    monkeypatch.setattr(device.torch, "get_device_module", lambda _: module)
    return module


def test_nothing_is_looked_for_where_the_device_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def never() -> None:
        raise AssertionError

    monkeypatch.setattr(device, "accelerator", never)
    monkeypatch.setattr(device, "installed", never)
    assert device.select_device("cpu", 3) == torch.device("cpu")
    with pytest.raises(AssertionError):
        device.select_device(None, 3)


def test_the_cpu_is_the_device_where_there_is_no_accelerator() -> None:
    if torch.accelerator.is_available():
        pytest.skip("this machine has an accelerator")
    assert device.select_device(None, 3) == torch.device("cpu")
    assert device.select_backend(None, torch.device("cpu")) == "gloo"


def test_the_accelerator_is_the_default_and_the_local_rank_its_index(cuda: Module) -> None:
    assert device.select_device(None, 3) == torch.device("cuda", 3)
    assert device.select_device("cuda:1", 3) == torch.device("cuda", 1)
    assert device.select_device("cpu", 3) == torch.device("cpu")
    assert cuda.current == [3, 1]


def test_one_visible_device_is_device_zero(cuda: Module) -> None:
    cuda.count = 1
    assert device.select_device(None, 3) == torch.device("cuda", 0)


def test_out_of_range_says_how_to_mask(cuda: Module) -> None:
    with pytest.raises(meshkit.LaunchError) as caught:
        device.select_device(None, 4)
    assert str(caught.value) == (
        "init(): there is no cuda:4 for local_rank 4.\n"
        "  This process sees 4 cuda devices.\n"
        "  Fix: start 4 ranks on this node, or init(device='cpu')."
    )
    assert cuda.current == []


def test_a_backend_that_torch_does_not_have() -> None:
    with pytest.raises(meshkit.LaunchError) as caught:
        device.select_backend("cpu:gloo,cuda:smoke", torch.device("cpu"))
    assert str(caught.value) == (
        f"init(): this torch {torch.__version__} has no backend 'smoke'.\n"
        "  Fix: backend='gloo', or a torch built with it."
    )


@pytest.mark.parametrize(
    ("kind", "backend"),
    [
        *(("cuda", "nccl"), ("hpu", "hccl"), ("xpu", "xccl"), ("npu", "hccl")),
        *(("mlu", "cncl"), ("musa", "mccl"), ("cpu", "gloo"), ("toaster", "gloo")),
    ],
)
def test_the_table_answers_where_torch_has_no_backend(
    kind: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(_: object) -> str:
        raise ValueError("Default backend not registered for device")

    monkeypatch.setattr(device.dist, "get_default_backend_for_device", unknown)
    monkeypatch.setattr(device.dist, "is_backend_available", lambda _: True)
    assert device.select_backend(None, SimpleNamespace(type=kind)) == backend


def test_an_older_backend_stands_in_for_one_that_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device.dist, "is_backend_available", lambda name: name == "ccl")
    assert device.select_backend(None, torch.device("xpu")) == "ccl"


def unheard_of() -> str:
    """torch's own map knows an accelerator as soon as its package has registered a backend."""
    device.dist.Backend.register_backend("fancy", lambda *_: None, devices=["privateuseone"])
    return device.select_backend(None, torch.device("privateuseone"))


def test_an_accelerator_that_is_in_no_row_works() -> None:
    assert meshkit.spawn(unheard_of, 1) == ["fancy"]


def test_one_backend_for_each_kind_of_device() -> None:
    def available(kind: str) -> str:
        return device.backend_for("cpu:gloo,cuda:nccl", kind)

    assert [available(kind) for kind in ("cpu", "cuda", "xpu")] == ["gloo", "nccl", ""]
    assert device.select_backend("CPU:gloo", torch.device("cpu")) == "cpu:gloo"


def test_every_row_of_accelerators_is_its_own() -> None:
    kinds = [row.device for row in ACCELERATORS]
    assert len(set(kinds)) == len(kinds)
    assert all(row.backends for row in ACCELERATORS)


def test_a_backend_without_the_cpu_is_refused_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device.dist, "is_backend_available", lambda _: True)
    Call("init", kwargs={"backend": "nccl", "device": "cpu"})
    with pytest.raises(meshkit.LaunchError) as caught:
        device.select_backend("nccl", torch.device("cpu"))
    assert str(caught.value) == (
        "init(backend='nccl', device='cpu'): the backend 'nccl' has no collectives on cpu, "
        "the device of this rank.\n"
        "  Fix: init(backend='gloo', device='cpu'), or leave device and backend to init."
    )
    assert device.select_backend("cpu:gloo,cuda:nccl", torch.device("cpu"))


@pytest.mark.parametrize(
    "backend",
    [
        *("a:b:gloo", ":gloo", "gloo,gloo", "cpu:gloo,cpu:gloo", "cpu:gloo,gloo", "", ","),
        *("undefined", "smoke", 0, {}, b"gloo", "cuda:gloo"),
    ],
)
def test_backends_that_are_none(backend: object) -> None:
    with pytest.raises(meshkit.LaunchError):
        device.select_backend(backend, torch.device("cpu"))


def test_blanks_and_capitals_in_a_backend_are_nobodys_fault() -> None:
    assert device.select_backend("CPU:gloo, cuda:gloo", torch.device("cpu")) == (
        "cpu:gloo,cuda:gloo"
    )


@pytest.mark.parametrize("asked", [b"cpu", 0, "", "toaster", ["cpu"], 1.5])
def test_devices_that_are_none(asked: object) -> None:
    with pytest.raises(meshkit.LaunchError, match="torch does not know the device"):
        device.select_device(asked, 0)
