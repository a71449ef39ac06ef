"""Device and backend, on a fake accelerator."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import meshkit
from meshkit.core.call import Call
from meshkit.launch.device import device


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


def test_a_requested_device_needs_no_detection(monkeypatch: pytest.MonkeyPatch) -> None:
    def never() -> None:
        raise AssertionError

    monkeypatch.setattr(device, "accelerator", never)
    monkeypatch.setattr(device, "installed", never)
    assert device.select_device("cpu", 3) == torch.device("cpu")
    with pytest.raises(AssertionError):
        device.select_device(None, 3)


def test_the_cpu_is_the_default_without_an_accelerator() -> None:
    if torch.accelerator.is_available():
        pytest.skip("this machine has an accelerator")
    assert device.select_device(None, 3) == torch.device("cpu")
    assert device.select_backend(None, torch.device("cpu")) == "gloo"


def test_the_accelerator_is_the_default_and_the_local_rank_its_index(cuda: DeviceModule) -> None:
    assert device.select_device(None, 3) == torch.device("cuda", 3)
    assert device.select_device("cuda:1", 3) == torch.device("cuda", 1)
    assert device.select_device("cpu", 3) == torch.device("cpu")
    assert cuda.current == [3, 1]


def test_one_visible_device_is_device_zero(cuda: DeviceModule) -> None:
    cuda.count = 1
    assert device.select_device(None, 3) == torch.device("cuda", 0)


def test_a_local_rank_without_a_device_raises(cuda: DeviceModule) -> None:
    with pytest.raises(meshkit.LaunchError) as caught:
        device.select_device(None, 4)
    assert str(caught.value) == (
        "there is no cuda:4 for local_rank 4.\n"
        "  This process sees 4 cuda devices.\n"
        "  Fix: start 4 ranks on this node, or init(device='cpu')."
    )
    assert cuda.current == []


def test_a_backend_that_torch_lacks_raises() -> None:
    with pytest.raises(meshkit.LaunchError) as caught:
        device.select_backend("cpu:gloo,cuda:smoke", torch.device("cpu"))
    assert str(caught.value) == (
        f"this torch {torch.__version__} has no backend 'smoke'.\n"
        "  Fix: backend='gloo', or a torch built with it."
    )


@pytest.mark.parametrize(
    ("device_type", "backend"),
    [
        *(("cuda", "nccl"), ("hpu", "hccl"), ("xpu", "xccl"), ("npu", "hccl")),
        *(("mlu", "cncl"), ("musa", "mccl"), ("cpu", "gloo"), ("toaster", "gloo")),
    ],
)
def test_the_table_gives_the_backend_if_torch_has_no_default(
    device_type: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(_: object) -> str:
        raise ValueError("Default backend not registered for device")

    monkeypatch.setattr(device.dist, "get_default_backend_for_device", unknown)
    monkeypatch.setattr(device.dist, "is_backend_available", lambda _: True)
    assert device.select_backend(None, SimpleNamespace(type=device_type)) == backend


def test_an_older_backend_replaces_a_missing_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device.dist, "is_backend_available", lambda name: name == "ccl")
    assert device.select_backend(None, torch.device("xpu")) == "ccl"


def backend_of_new_accelerator() -> str:
    """Register a backend as the package of an accelerator does; return the selected one."""
    device.dist.Backend.register_backend("fancy", lambda *_: None, devices=["privateuseone"])
    return device.select_backend(None, torch.device("privateuseone"))


def test_an_accelerator_without_a_row_works() -> None:
    assert meshkit.spawn(backend_of_new_accelerator, 1) == ["fancy"]


def test_one_backend_per_device_type() -> None:
    backends = [device.backend_for("cpu:gloo,cuda:nccl", name) for name in ("cpu", "cuda", "xpu")]
    assert backends == ["gloo", "nccl", ""]
    assert device.select_backend("CPU:gloo", torch.device("cpu")) == "cpu:gloo"


def test_a_backend_without_collectives_on_the_cpu_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device.dist, "is_backend_available", lambda _: True)
    with pytest.raises(meshkit.LaunchError) as caught:
        device.select_backend("nccl", torch.device("cpu"))
    call = Call("init", kwargs={"backend": "nccl", "device": "cpu"})
    assert str(caught.value.quote(call)) == (
        "init(backend='nccl', device='cpu'): the backend 'nccl' has no collectives on cpu, "
        "the device of this rank.\n"
        "  Fix: backend='gloo', or leave device and backend to init."
    )
    assert device.select_backend("cpu:gloo,cuda:nccl", torch.device("cpu"))


@pytest.mark.parametrize(
    "backend",
    [
        *("a:b:gloo", ":gloo", "gloo,gloo", "cpu:gloo,cpu:gloo", "cpu:gloo,gloo", "", ","),
        *("undefined", "smoke", 0, {}, b"gloo", "cuda:gloo"),
    ],
)
def test_invalid_backends(backend: object) -> None:
    with pytest.raises(meshkit.LaunchError):
        device.select_backend(backend, torch.device("cpu"))


def test_blanks_and_capitals_in_a_backend_are_accepted() -> None:
    assert device.select_backend("CPU:gloo, cuda:gloo", torch.device("cpu")) == (
        "cpu:gloo,cuda:gloo"
    )


@pytest.mark.parametrize("requested", [b"cpu", 0, "", "toaster", ["cpu"], 1.5])
def test_invalid_devices(requested: object) -> None:
    with pytest.raises(meshkit.LaunchError, match="torch does not know the device"):
        device.select_device(requested, 0)


def test_gloo_replaces_a_missing_nccl_unless_it_is_requested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device.dist, "is_backend_available", lambda name: name == "gloo")
    gpu = SimpleNamespace(type="cuda")
    monkeypatch.setattr(device.dist, "get_default_backend_for_device", lambda _: "nccl")
    with pytest.warns(RuntimeWarning, match="has no backend nccl; collectives use gloo"):
        assert device.select_backend(None, gpu) == "gloo"
    with pytest.raises(meshkit.LaunchError, match="has no backend 'nccl'"):
        device.select_backend("nccl", gpu)
    monkeypatch.setattr(device.dist, "get_default_backend_for_device", lambda _: "xccl")
    with pytest.raises(meshkit.LaunchError, match="has no backend 'xccl'"):  # gloo cannot
        device.select_backend(None, SimpleNamespace(type="xpu"))


def test_a_backend_of_a_missing_bridge_names_its_package() -> None:
    with pytest.raises(meshkit.LaunchError) as caught:
        device.select_backend("hccl", torch.device("cpu"))
    call = Call("init", kwargs={"backend": "hccl"})
    assert str(caught.value.quote(call)) == (
        f"init(backend='hccl'): this torch {torch.__version__} has no backend 'hccl'.\n"
        "  The package habana_frameworks (device hpu) or torch_npu (device npu) adds it when it is "
        "imported.\n"
        "  Fix: install habana_frameworks or torch_npu, or backend='gloo'."
    )
