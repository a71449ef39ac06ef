"""The table of accelerators: one row each, with the facts missing from torch's own backend map.

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
registered a backend. Tested here: cpu, and hpu with a stand-in. The other rows were never run.
"""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple

from ...core.errors import LaunchError


class Accelerator(NamedTuple):
    """One row of the table."""

    device: str  # the device type, as torch names it
    backends: tuple[str, ...]  # the backends of its collectives, newest first
    # modules to import before torch knows the device; the first is its package
    bridge: tuple[str, ...] = ()
    # the variable that lists the modules this node may use, by local rank
    visible: str | None = None
    # the variable that selects one of them before the bridge is imported; each process then sees
    # one device
    module: str | None = None
    shares: str | None = None  # the variable that allows several ranks on one device when set to 1


ACCELERATORS = (
    Accelerator("cuda", ("nccl",), shares="NCCL_MULTI_RANK_GPU_ENABLE"),  # the variable: NCCL 2.30
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
EXCLUSIVE = {backend for row in ACCELERATORS for backend in row.backends}


def accelerator_row(device_type: str) -> Accelerator:
    """Return the row of a device type, or a row with gloo and mpi if the table has none."""
    return _ROWS.get(device_type, Accelerator(device_type, ("gloo", "mpi")))


def installed() -> str | None:
    """Return the first device type whose bridge is installed. Imports nothing."""
    rows = (row for row in ACCELERATORS if row.bridge and find_spec(row.bridge[0].split(".")[0]))
    return next((row.device for row in rows), None)


def bridge_packages(backend: str) -> dict[str, str]:
    """Return the packages that add a backend to torch, by device type.

    Example:
        >>> bridge_packages("hccl")
        {'hpu': 'habana_frameworks', 'npu': 'torch_npu'}
    """
    rows = (row for row in ACCELERATORS if row.bridge and backend in row.backends)
    return {row.device: row.bridge[0].partition(".")[0] for row in rows}


def load_bridge(device_type: str, local_rank: int | None) -> None:
    """Import the modules that make a device known to torch.

    Selects this rank's module first. Does nothing for a device without a bridge.
    """
    row = accelerator_row(device_type)
    if local_rank is not None and row.module is not None:
        _select_module(row, local_rank)
    for name in row.bridge:
        try:
            import_module(name)
        except Exception as error:  # a vendor's package may raise anything
            raise LaunchError(
                f"cannot import {name}, which makes torch know {device_type}.",
                f"{type(error).__name__}: {error}",
                fix="repair that package, or init(device='cpu').",
            ) from error


def _select_module(row: Accelerator, local_rank: int) -> None:
    """Set the variable that binds this process to one of the visible modules."""
    visible = os.environ.get(row.visible or "")
    if row.visible is None or row.module is None or not visible or row.module in os.environ:
        return
    modules = [module.strip() for module in visible.split(",")]
    if len({*modules}) < len(modules) or not all(module.isdecimal() for module in modules):
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


def can_share_device(device_type: str, backend: str) -> bool:
    """Return whether a backend allows several ranks on one device."""
    variable = accelerator_row(device_type).shares
    return backend not in EXCLUSIVE or (variable is not None and os.environ.get(variable) == "1")
