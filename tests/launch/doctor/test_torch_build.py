"""The checks of torch, its devices and its backends, mostly with a fake torch."""

from __future__ import annotations

import sys
import types
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from meshkit.launch.device import accelerators, device
from meshkit.launch.doctor import torch_build
from meshkit.launch.doctor.finding import Finding


def fake_torch(**more: object) -> Any:
    version = types.SimpleNamespace(cuda=more.pop("cuda", None), hip=more.pop("hip", None))
    return types.SimpleNamespace(**{"__version__": "2.13.0", "version": version, **more})


@pytest.mark.parametrize("version", ["2.11.0", "2.13.0+cpu", "2.12.0a0+git12", "3.0"])
def test_supported_versions(version: str) -> None:
    finding = torch_build.check_version(fake_torch(__version__=version))
    assert finding == Finding("torch", True, f"{version}, built for neither CUDA nor HIP")


@pytest.mark.parametrize("version", ["2.5.1+cu124", "2.10.0", "1.13.1", "unknown"])
def test_unsupported_versions(version: str) -> None:
    finding = torch_build.check_version(fake_torch(__version__=version, cuda="12.4"))
    text = f"{version}, built for CUDA 12.4"
    assert finding == Finding("torch", False, text, "pip install 'torch>=2.11'")


def test_an_old_torch_is_checked_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", fake_torch(__version__="2.5.0"))
    assert [f.name for f in torch_build.check_torch({})] == ["torch"]


def test_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    (finding,) = torch_build.check_torch({})
    assert not finding.ok
    assert finding.found.startswith(
        "cannot be imported: ModuleNotFoundError: import of torch halted"
    )
    assert finding.advice == "pip install 'torch>=2.11'"


class DeviceModule:
    """A device module of torch with some devices."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def device_count(self) -> int:
        return len(self.names)

    def get_device_name(self, index: int) -> str:
        if self.names[index] == "nameless":
            raise RuntimeError("no name")
        return self.names[index]


def fake_devices(monkeypatch: pytest.MonkeyPatch, kind: str | None, *names: str) -> None:
    monkeypatch.setattr(device, "accelerator", lambda: kind)
    monkeypatch.setattr(torch, "get_device_module", lambda _: DeviceModule(*names))


def test_devices_are_counted_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_devices(monkeypatch, "cuda", "NVIDIA H200", "NVIDIA H200", "nameless")
    kind, finding = torch_build.check_devices(torch, {})
    assert kind == "cuda"
    assert finding == Finding("devices", True, "cuda: 2 x NVIDIA H200, 1 x cuda")


def fake_drivers(monkeypatch: pytest.MonkeyPatch, *paths: str) -> None:
    monkeypatch.setattr(Path, "exists", lambda self: str(self) in paths)


def test_no_device_and_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_devices(monkeypatch, None)
    fake_drivers(monkeypatch)
    assert torch_build.check_devices(torch, {}) == ("cpu", Finding("devices", True, "cpu only"))


def test_a_driver_without_devices_that_torch_sees_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_available() -> bool:
        warnings.warn("CUDA initialization: the driver is too old", UserWarning, stacklevel=1)
        return False

    fake_devices(monkeypatch, None)
    fake_drivers(monkeypatch, "/dev/nvidiactl")
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    _, finding = torch_build.check_devices(torch, {})
    assert finding == Finding(
        "devices",
        False,
        "cpu only, but a driver of NVIDIA is installed\nCUDA initialization: the driver is too old",
        "nvidia-smi, then install a torch built for that version: https://pytorch.org/get-started",
    )


def test_hidden_devices_do_not_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_devices(monkeypatch, None)
    fake_drivers(monkeypatch, "/dev/nvidiactl")
    _, finding = torch_build.check_devices(torch, {"CUDA_VISIBLE_DEVICES": ""})
    assert finding == Finding("devices", True, "cpu only (CUDA_VISIBLE_DEVICES='')")


def test_an_amd_graphics_driver_counts_only_for_a_torch_with_hip(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake_devices(monkeypatch, None)
    fake_drivers(monkeypatch, "/dev/kfd")
    monkeypatch.setattr(torch.version, "hip", None)
    assert torch_build.check_devices(torch, {})[1].ok
    monkeypatch.setattr(torch.version, "hip", "6.2")
    assert torch_build.check_devices(torch, {})[1].advice.startswith("rocm-smi, then")


def test_a_bridge_that_cannot_be_imported_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: str) -> None:
        raise ImportError("no libhcl.so")

    fake_devices(monkeypatch, "npu")
    monkeypatch.setattr(accelerators, "import_module", broken)
    kind, finding = torch_build.check_devices(torch, {})
    assert kind == "cpu"
    assert finding == Finding(
        "devices",
        False,
        "cannot import torch_npu, which makes torch know npu.\nImportError: no libhcl.so",
        "repair that package, or init(device='cpu').",
    )


def with_backends(*names: str, available: bool = True) -> Any:
    distributed = types.SimpleNamespace(
        is_available=lambda: available, is_backend_available=names.__contains__
    )
    return fake_torch(distributed=distributed)


def test_backends_that_are_built_in_and_those_that_are_not() -> None:
    finding = torch_build.check_backends(with_backends("gloo", "mpi"), "cpu")
    assert finding == Finding("backends", True, "gloo mpi; not built in: nccl ucc xccl")
    everything = with_backends(*torch_build.BACKENDS)
    assert torch_build.check_backends(everything, "cuda").found == "gloo nccl mpi ucc xccl"


def test_a_backend_from_the_table_of_accelerators() -> None:
    finding = torch_build.check_backends(with_backends("gloo", "hccl"), "npu")
    assert finding == Finding("backends", True, "gloo hccl; not built in: nccl mpi ucc xccl")


def test_no_backend_for_the_device_fails() -> None:
    finding = torch_build.check_backends(with_backends("gloo"), "cuda")
    text = "gloo; not built in: nccl mpi ucc xccl\nnone of them supports cuda"
    assert finding == Finding("backends", False, text, "install a torch built with nccl.")


def test_no_torch_distributed() -> None:
    finding = torch_build.check_backends(with_backends(available=False), "cpu")
    text = "torch was built without torch.distributed"
    assert finding == Finding("backends", False, text, "install a torch built with gloo or mpi.")
