"""Links: what a device computes and what its wires carry, by data sheet or as measured.

A table, one row a machine. Figures of data sheets are what cannot be exceeded; a measurement, in
the same words, ranks better.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import asdict, dataclass, fields

from ..call import public
from ..errors import SpecError
from ..validate import is_number

LEAST, MOST = 1e-30, 1e30  # so that no prediction leaves the range of a float


@dataclass(frozen=True)
class Machine:
    """A device and its wires. Each rank has its own; ranks of a node share what leaves it.

    Attributes:
        flops: operations a second that matrix products in bf16 attain.
        memory: GB (1e9 bytes) of one device that a job may fill.
        reads: GB/s of its memory.
        inside: GB/s, one direction, from a device to the others of its node.
        across: GB/s, one direction, out of a node, for each of its devices.
        wait_inside: s that one step of a collective waits inside a node.
        wait_across: s that it waits between nodes.
        source: where the figures are from.
    """

    flops: float
    memory: float
    reads: float
    inside: float
    across: float
    wait_inside: float = 3.4e-6
    wait_across: float = 14e-6
    source: str = ""

    @public("Links")
    def __post_init__(self) -> None:
        for field in fields(self)[:-1]:
            value = getattr(self, field.name)
            if not is_number(value) or not LEAST <= value <= MOST:
                fix = f"a number from {LEAST:g} to {MOST:g}."
                raise SpecError(f"{field.name} is {value!r}.", fix=fix)

    @public("links.but")
    def but(self, measured: Mapping[str, object]) -> Machine:
        """These figures with some that were measured in their place.

        Args:
            measured: names of the figures, as above, to their values.

        Raises:
            SpecError: for a name that is no figure, or a value that is no such number.

        Example:
            >>> LINKS["h100"].but({"inside": 370}).inside
            370
        """
        known = asdict(self)
        for name in measured:
            if name not in known:
                fix = f"one of {', '.join(known)}."
                raise SpecError(f"there is no figure {name!r}.", fix=fix)
        return Machine(**{**known, **measured})

    def assumed(self, whose: str, measured: Container[str]) -> tuple[str, ...]:
        """The figures that were not measured, each in words.

        Args:
            whose: the machine of :data:`MACHINES` that they are of.
            measured: names of the others.

        Example:
            >>> LINKS["h100"].assumed("h100", {"flops", "memory", "reads", "inside"})[0]
            "across nodes: h100's 50 GB/s, not measured"
        """
        return tuple(
            f"{what}: {whose}'s {getattr(self, name) / unit:.4g} {word}, not measured"
            for name, (what, unit, word) in _WORDS.items()
            if name not in measured
        )


_WORDS = {
    "flops": ("compute", 1e12, "TFLOP/s"),
    "memory": ("memory", 1, "GB"),
    "reads": ("reads of memory", 1, "GB/s"),
    "inside": ("in a node", 1, "GB/s"),
    "across": ("across nodes", 1, "GB/s"),
    "wait_inside": ("a step in a node", 1e-6, "us"),
    "wait_across": ("a step across nodes", 1e-6, "us"),
}

# The share of the dense bf16 peak that a trainer attains between its collectives. Chosen on Llama 3
# 405B: 430, 400 and 380 TFLOP/s of an H100 all told (arXiv 2407.21783, table 4; 8192, 16,384 ranks,
# 131,072 tokens). With it core/cost says 424, 398 and 403.
ATTAINED = 0.55

_WAITS = "waits: NCCL, src/graph/tuning.cc, hwLat, Ring Simple"

MACHINES = {
    "a100": Machine(
        ATTAINED * 312e12, 80, 2039, 300, 25,
        source=f"A100 80GB SXM data sheet; DGX A100: one 200 Gb/s HDR port a GPU; {_WAITS}",
    ),
    "h100": Machine(
        ATTAINED * 989e12, 80, 3350, 450, 50,
        source=f"H100 SXM data sheet; DGX H100: one 400 Gb/s NDR port a GPU; {_WAITS}",
    ),
    "h200": Machine(
        ATTAINED * 989e12, 141, 4800, 450, 50,
        source=f"H200 SXM data sheet; DGX H200: one 400 Gb/s NDR port a GPU; {_WAITS}",
    ),
    "b200": Machine(
        ATTAINED * 2250e12, 180, 8000, 900, 50,
        source=f"DGX B200 data sheet: NVLink 1.8 TB/s both ways, one 400 Gb/s port a GPU; {_WAITS}",
    ),
}  # fmt: skip
