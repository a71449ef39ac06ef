"""The device of a process and the backend of its collectives, from torch and one table.

::

    device  backend      imported first                             needs one rank per device
    cuda    nccl         --                                         yes (NVIDIA and AMD)
    hpu     hccl         the Habana bridge, with HLS_MODULE_ID      yes
    xpu     xccl, ccl    --                                         yes
    npu     hccl         torch_npu                                  yes
    mlu     cncl         torch_mlu                                  yes
    musa    mccl         torch_musa                                 yes
    cpu     gloo, mpi    --                                         no

torch's map takes precedence, so an accelerator without a row works as soon as its package has
registered a backend. Tested: cpu, cuda, and hpu with a stand-in. The other rows were never run.

All accelerators have collectives with NCCL's semantics, and NCCL has several names: ``nccl``,
``nccl2``, ``nccl-lazy``, ``nccl-legacy``, ``ncclx``. :func:`nccl_parts` alone tells them from other
backends.
"""

from __future__ import annotations

import os
import warnings
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple

import torch
import torch.distributed as dist

from ..errors import LaunchError, format_error
from ..text import count_noun


class Accelerator(NamedTuple):
    """One row of the table."""

    device: str  # the device type, as torch names it
    backends: tuple[str, ...]  # the backends of its collectives, newest first
    bridge: tuple[str, ...] = ()  # modules to import before torch knows the device
    visible: str = ""  # the variable that lists the modules this node may use, by local rank
    module: str = ""  # the variable that binds a process to one of them before the import
    shares: str = ""  # the variable that allows several ranks on one device when set to 1
    host: str = ""  # the variable that names the host; ranks of two names may share a device


ACCELERATORS = (
    Accelerator("cuda", ("nccl",), shares="NCCL_MULTI_RANK_GPU_ENABLE", host="NCCL_HOSTID"),
    Accelerator(
        "hpu",
        ("hccl",),
        bridge=("habana_frameworks.torch.core", "habana_frameworks.torch.distributed.hccl"),
        visible="HABANA_VISIBLE_MODULES",
        module="HLS_MODULE_ID",
    ),
    Accelerator("xpu", ("xccl", "ccl")),
    Accelerator("npu", ("hccl",), bridge=("torch_npu",)),
    Accelerator("mlu", ("cncl",), bridge=("torch_mlu",)),
    Accelerator("musa", ("mccl",), bridge=("torch_musa",)),
)
_ROWS = {row.device: row for row in ACCELERATORS}
SHARING = (2, 30)  # the first NCCL that reads the variable ``shares``
_LIKE_NCCL = {backend for row in ACCELERATORS for backend in row.backends}


def accelerator_row(device_type: str) -> Accelerator:
    """Return the row of a device type, or a row with gloo and mpi if the table has none."""
    return _ROWS.get(device_type, Accelerator(device_type, ("gloo", "mpi")))


def device_of_backend(backend: str) -> str | None:
    """Return the device type of a backend whose bridge has made torch know it. Local."""
    rows = (row for row in ACCELERATORS if backend in row.backends and hasattr(torch, row.device))
    return next((row.device for row in rows), None)


def installed() -> str | None:
    """Return the first device type whose bridge is installed. Imports nothing."""
    rows = (row for row in ACCELERATORS if row.bridge and find_spec(row.bridge[0].split(".")[0]))
    return next((row.device for row in rows), None)


def load_bridge(device_type: str, local_rank: int | None) -> None:
    """Import the modules that make a device known to torch, after selecting this rank's module."""
    row = accelerator_row(device_type)
    if local_rank is not None and row.module and row.module not in os.environ:
        _select_module(row, local_rank)
    for name in row.bridge:
        try:
            import_module(name)
        except Exception as error:  # a vendor's package may raise anything
            raise LaunchError(
                f"cannot import {name}, which makes torch know {device_type}.",
                f"{type(error).__name__}: {error}",
                fix="repair that package, or 'cpu' as the device.",
            ) from error


def _select_module(row: Accelerator, local_rank: int) -> None:
    """Set the variable that binds this process to one of the visible modules."""
    visible = os.environ.get(row.visible)
    if not visible:
        return
    modules = [module.strip() for module in visible.split(",")]
    are_numbers = all(module.isascii() and module.isdigit() for module in modules)
    if len({*modules}) < len(modules) or not are_numbers:
        raise LaunchError(
            f"{row.visible}={visible} is not a list of {row.device} modules.",
            fix=f"export {row.visible}=0,1,2,3, each number once.",
            variables={row.visible: visible},
        )
    if local_rank >= len(modules):
        raise LaunchError(
            f"there is no {row.device} module for local_rank {local_rank}.",
            f"{row.visible}={visible} names {len(modules)}.",
            fix=f"start {len(modules)} ranks on this node, or name more in {row.visible}.",
            variables={row.visible: visible},
        )
    os.environ[row.module] = modules[local_rank]


def _only_module(device_type: str) -> int | None:
    """Return the module of a rank without a known local rank: the first one, or None to set none.

    A module is chosen before the import of its bridge, so before the ranks have met.
    """
    row = accelerator_row(device_type)
    visible = os.environ.get(row.visible, "")
    if not row.module or row.module in os.environ or not visible:
        return None
    if "," in visible:
        raise LaunchError(
            f"the local rank of this process is unknown, and so is its {row.device} module.",
            f"{row.visible}={visible} names several.",
            fix="export LOCAL_RANK=<the index of this rank on its node>, or pass local_rank=.",
            variables={row.visible: visible},
        )
    return 0


def can_share_device(device_type: str, backend: str) -> bool:
    """Return whether a backend allows several ranks on one device of one host."""
    if not nccl_parts(backend):
        return True
    variable = accelerator_row(device_type).shares
    return os.environ.get(variable) == "1" and nccl_version() >= SHARING


def nccl_version() -> tuple[int, ...]:
    """Return the version of NCCL that torch uses, (0,) if it has none."""
    try:
        return tuple(torch.cuda.nccl.version())  # type: ignore[no-untyped-call]
    except (AttributeError, RuntimeError):  # a torch without CUDA
        return (0,)


def accelerator() -> str | None:
    """Return the type of this machine's accelerator as torch sees it, or None."""
    if not torch.accelerator.is_available():
        return None
    current = torch.accelerator.current_accelerator()
    return current.type if current is not None else None


def parse_device(requested: str | torch.device) -> torch.device:
    """Return the requested device, possibly without an index."""
    try:
        if not isinstance(requested, str | torch.device):
            raise TypeError(f"a device, or its name, not {requested!r}")
        return torch.device(requested)
    except (RuntimeError, TypeError) as error:
        line = f"torch does not know the device {requested!r}."
        raise LaunchError(line, fix="device='cpu' or 'cuda'.") from error


def select_device(requested: str | torch.device | None, local_rank: int | None) -> torch.device:
    """Return the device of this process and make an accelerator torch's current device.

    The device has no index yet if that is the local rank, and that is unknown.
    """
    # `installed` reads many folders, so it runs only without a request
    kind = str(requested or accelerator() or installed() or "cpu").partition(":")[0]
    if requested is None and kind == "cpu":
        return torch.device("cpu")
    # before torch can read the device
    load_bridge(kind, local_rank if local_rank is not None else _only_module(kind))
    device = parse_device(kind if requested is None else requested)
    if device.type == "cpu":
        return torch.device("cpu")
    num_visible = visible_devices(device)
    if requested is None and not num_visible:  # a bridge without a device
        return torch.device("cpu")
    single = num_visible == 1 or bool(accelerator_row(device.type).module)
    index = device.index if device.index is not None else (0 if single else local_rank)
    if index is None:
        return device
    if index >= num_visible:
        fewer = f"start {count_noun(num_visible, 'rank')} on this node, or " if num_visible else ""
        is_built = torch.backends.cuda.is_built()  # type: ignore[no-untyped-call]
        lacks = device.type == "cuda" and not is_built
        built = f"This torch {torch.__version__} is built without cuda."
        raise LaunchError(
            f"there is no {device.type}:{index} for local_rank {local_rank}.",
            f"This process sees {count_noun(num_visible, device.type + ' device')}.",
            *[built] * lacks,
            fix=f"{fewer}'cpu' as the device{', or a torch built with cuda' * lacks}.",
        )
    chosen = torch.device(device.type, index)
    make_current = getattr(torch.get_device_module(chosen), "set_device", None)
    if make_current is not None:  # mps has one device only, and no such function
        make_current(index)
    return chosen


def visible_devices(device: torch.device) -> int:
    """Return how many devices of this type the process sees."""
    try:
        return int(torch.get_device_module(device).device_count())
    except (RuntimeError, AttributeError):  # this torch has no such module
        return 0


def device_uuid(device: torch.device) -> str | None:
    """Return the UUID of a physical device, which masking does not change, or None if unknown."""
    try:
        properties = torch.get_device_module(device).get_device_properties(device)
        uuid = getattr(properties, "uuid", None)
    except (RuntimeError, AttributeError, TypeError):
        return None
    return None if uuid is None else str(uuid)


def select_backend(requested: str | None, device: torch.device) -> str:
    """Return the requested backend, else torch's default for the device, else the table's."""
    name = _default_backend(device.type) if requested is None else requested
    backend = check_backend(name)
    kind = backend_for(backend, device.type)
    if not kind or (device.type == "cpu" and not _has_cpu(kind)):
        raise LaunchError(
            f"the backend {backend!r} has no collectives on {device.type}, the device of this "
            "rank.",
            fix="backend='gloo', or leave device and backend to init.",
        )
    return backend


def _default_backend(device_type: str) -> str:
    """Return torch's default if it is built in: accelerators register themselves there."""
    names: list[str] = []
    with suppress(ValueError):  # torch has none for this device
        names.append(str(dist.get_default_backend_for_device(device_type)))
        if dist.is_backend_available(names[0]):
            return names[0]
    names += accelerator_row(device_type).backends
    available = next((name for name in names if dist.is_backend_available(name)), None)
    if available is None and device_type == "cuda":  # gloo copies its tensors to the host
        text = format_error(
            f"this torch {torch.__version__} has no backend {names[0]}; collectives use gloo.",
            "gloo copies each tensor of a GPU to the host, and lacks some collectives.",
            fix=f"a torch built with {names[0]}, or init(backend='gloo') to silence this warning.",
        )
        warnings.warn(text, RuntimeWarning, stacklevel=7)
        return "gloo"
    return available or names[0]


def check_backend(name: object) -> str:
    """Return the name of a backend in lower case: ``"gloo"``, ``"cpu:gloo,cuda:nccl"``."""
    parts = [part.strip() for part in name.lower().split(",")] if isinstance(name, str) else [""]
    pairs = [(kind, backend) for kind, _, backend in (part.rpartition(":") for part in parts)]
    per_device = all(kind.isidentifier() for kind, _ in pairs) and len(dict(pairs)) == len(pairs)
    if not per_device and (len(pairs) > 1 or pairs[0][0] or not pairs[0][1]):
        raise LaunchError(
            f"backend is {name!r}.",
            "A backend is one name, or one name per device type.",
            fix="backend='gloo', or backend='cpu:gloo,cuda:nccl'.",
        )
    used = [backend for _, backend in pairs]
    missing = [n for n in used if n == "undefined" or not dist.is_backend_available(n)]
    if missing:
        rows = [row for row in ACCELERATORS if row.bridge and missing[0] in row.backends]
        packages = {row.device: row.bridge[0].partition(".")[0] for row in rows}
        names = " or ".join(f"{package} (device {kind})" for kind, package in packages.items())
        install = f"install {' or '.join(packages.values())}, or backend='gloo'."
        raise LaunchError(
            f"this torch {torch.__version__} has no backend {missing[0]!r}.",
            *[f"The package {names} adds it when it is imported."] * bool(packages),
            fix=install if packages else "backend='gloo', or a torch built with it.",
        )
    return ",".join(parts)


def _has_cpu(backend: str) -> bool:
    """Return whether a backend has collectives on the CPU, as far as torch knows."""
    devices: list[str] | None = dist.Backend.backend_capability.get(backend)
    return not nccl_parts(backend) if devices is None else "cpu" in devices


def nccl_parts(backend: str) -> dict[str, str]:
    """Return device type to name of each part of a backend that has NCCL's semantics. Pure.

    These are NCCL under all its names, and similar libraries of other vendors. A call returns
    before its work is done, and raises no error of that work: a watchdog finds the error, and an
    abort ends the groups. Each rank needs a device of its own. The type of a lone name is "".

    Example:
        >>> nccl_parts("cpu:gloo,cuda:nccl2"), nccl_parts("nccl-lazy"), nccl_parts("gloo")
        ({'cuda': 'nccl2'}, {'': 'nccl-lazy'}, {})
    """
    pairs = (part.strip().rpartition(":") for part in backend.lower().split(","))
    return {kind: name for kind, _, name in pairs if name in _LIKE_NCCL or "ccl" in name}


def backend_for(backend: str, device_type: str) -> str:
    """Return the part of a backend's name that serves a device type, "" if it has none."""
    parts = dict(part.split(":") for part in backend.split(",") if ":" in part)
    return parts.get(device_type, "" if parts else backend)
