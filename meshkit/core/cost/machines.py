"""Compute, memory and links of a device, from data sheets or as measured.

Data sheets give upper bounds. A ranking with measured figures is closer to the truth.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import asdict, dataclass, fields

from ..call import quotes_call
from ..errors import SpecError
from ..validate import is_number

MIN_FIGURE, MAX_FIGURE = 1e-30, 1e30  # so that each prediction stays in the range of a float


@dataclass(frozen=True)
class Machine:
    """The figures of one device. Each rank has one; the ranks of a node share its network links."""

    flops: float  # attained operations per second of bf16 matrix products
    memory: float  # GB (1e9 bytes) of one device that a job may use
    memory_bandwidth: float  # GB/s of its memory
    bandwidth_intra_node: float  # GB/s in one direction, from a device to the others of its node
    bandwidth_inter_node: float  # GB/s in one direction out of a node, for each of its devices
    latency_intra_node: float = 3.4e-6  # seconds of one step of a collective inside a node
    latency_inter_node: float = 14e-6  # seconds of one step between nodes
    source: str = ""

    def __post_init__(self) -> None:
        for field in fields(self)[:-1]:
            value = getattr(self, field.name)
            if not is_number(value) or not MIN_FIGURE <= value <= MAX_FIGURE:
                fix = f"a number from {MIN_FIGURE:g} to {MAX_FIGURE:g}."
                raise SpecError(f"{field.name} is {value!r}.", fix=fix)

    @quotes_call("machine.with_measured")
    def with_measured(self, measured: Mapping[str, object]) -> Machine:
        """Return the same machine with some figures replaced by measured ones.

        Args:
            measured: name of a figure, as above, to its value.

        Raises:
            SpecError: if a name is unknown, or a value is not a number from 1e-30 to 1e30.

        Example:
            >>> MACHINES["h100"].with_measured({"bandwidth_intra_node": 370}).bandwidth_intra_node
            370
        """
        figures = asdict(self)
        for name in measured:
            if name not in figures:
                fix = f"one of {', '.join(figures)}."
                raise SpecError(f"there is no figure {name!r}.", fix=fix)
        return Machine(**{**figures, **measured})

    def unmeasured(self, machine: str, measured: Container[str]) -> tuple[str, ...]:
        """Return a line of text for each figure that was not measured."""
        return tuple(
            f"{label}: {machine}'s {getattr(self, name) / scale:.4g} {unit}, not measured"
            for name, (label, scale, unit) in _LABELS.items()
            if name not in measured
        )


_LABELS = {  # figure to its label, scale and unit
    "flops": ("compute", 1e12, "TFLOP/s"),
    "memory": ("memory", 1, "GB"),
    "memory_bandwidth": ("memory bandwidth", 1, "GB/s"),
    "bandwidth_intra_node": ("in a node", 1, "GB/s"),
    "bandwidth_inter_node": ("across nodes", 1, "GB/s"),
    "latency_intra_node": ("a step in a node", 1e-6, "us"),
    "latency_inter_node": ("a step across nodes", 1e-6, "us"),
}

# The share of the dense bf16 peak that a trainer attains between its collectives. Fitted to Llama 3
# 405B: 430, 400 and 380 TFLOP/s of an H100 over a whole step (arXiv 2407.21783, table 4; 8192 and
# 16,384 ranks, and 131,072 tokens). With it this model predicts 424, 398 and 403.
ATTAINED = 0.55

_LATENCY = "latency: NCCL, src/graph/tuning.cc, hwLat, Ring Simple"

MACHINES = {
    "a100": Machine(
        ATTAINED * 312e12, 80, 2039, 300, 25,
        source=f"A100 80GB SXM data sheet; DGX A100: one 200 Gb/s HDR port a GPU; {_LATENCY}",
    ),
    "h100": Machine(
        ATTAINED * 989e12, 80, 3350, 450, 50,
        source=f"H100 SXM data sheet; DGX H100: one 400 Gb/s NDR port a GPU; {_LATENCY}",
    ),
    "h200": Machine(
        ATTAINED * 989e12, 141, 4800, 450, 50,
        source=f"H200 SXM data sheet; DGX H200: one 400 Gb/s NDR port a GPU; {_LATENCY}",
    ),
    "b200": Machine(
        ATTAINED * 2250e12, 180, 8000, 900, 50,
        source=f"DGX B200 data sheet: NVLink 1.8 TB/s both ways, one 400 Gb/s port a GPU; "
        f"{_LATENCY}",
    ),
}  # fmt: skip
