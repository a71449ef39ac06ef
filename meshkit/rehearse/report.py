"""The report of a rehearsal: bytes and seconds of each axis, and what was and was not checked."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..call import quotes_call
from ..errors import CollectiveError
from ..layout.topology import Topology
from ..plan.step_time import MACHINES, Machine
from ..text import GB, count_noun, format_bytes, format_table, group_by, shorten
from .record import Mismatch, Names, Operation, Trace

MAX_LINES = 8  # mismatches, warnings and errors that the text shows
# what a ring sends of the bytes of one rank, by the ranks of the group, and its steps
VOLUMES: dict[str, Callable[[int], tuple[float, int]]] = {
    "all_reduce": lambda n: (2 * (n - 1) / n, 2 * (n - 1)),
    "reduce_scatter": lambda n: ((n - 1) / n, n - 1),
    "all_gather": lambda n: (n - 1, n - 1),
    "all_to_all": lambda n: ((n - 1) / n, n - 1),
    "scatter": lambda n: ((n - 1) / n, 1),
    "barrier": lambda n: (0, 2 * (n - 1).bit_length()),  # a tree: nothing is sent along a ring
    "agree": lambda _: (0, 0),
    "new_group": lambda _: (0, 0),
    "recv": lambda _: (0, 0),
}
ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # in the text of an object, another one on each rank
NOT_PROVED = (
    "Not proved: control flow that depends on values follows made-up values; compute time, streams "
    "and the backend are not played"
)


class AxisTraffic(NamedTuple):
    """The traffic of one rank over the groups of some axes."""

    axes: str  # ``"dp sp"``; ``"others"`` for groups that are no axes of the mesh
    operations: int
    num_bytes: int  # that the rank hands over
    crosses_nodes: bool
    seconds: float  # of its operations one after another, on otherwise idle links


def axis_traffic(
    trace: Trace, names: Names, topology: Topology, machine: Machine
) -> dict[str, AxisTraffic]:
    """Return what a rank communicates, by axes.

    The seconds are those of the cost model: ``steps x latency + bytes / bandwidth``. If k ranks of
    a ring share a node, it sends 1/k of its bytes between nodes. An all-to-all of g ranks sends
    (g - k) / (g - 1) of them.
    """
    rows: dict[str, AxisTraffic] = {}
    groups = [names.group(group.members) for group in trace.groups]
    nodes = [topology.node_of(np.array(group.members)) for group in trace.groups]
    shared = [int(np.bincount(each - each.min()).max()) for each in nodes]  # ranks of one node
    for op in trace.operations:
        if op.name in ("new_group", "agree"):
            continue
        axes = groups[op.group].name or "others"
        size = len(groups[op.group].members)
        seconds = _seconds(op, size, shared[op.group], topology, machine, trace.rank)
        row = rows.get(axes, AxisTraffic(axes, 0, 0, False, 0.0))
        crosses = row.crosses_nodes or shared[op.group] < size
        total = row.num_bytes + op.num_bytes
        rows[axes] = AxisTraffic(axes, row.operations + 1, total, crosses, row.seconds + seconds)
    return rows


def _seconds(
    op: Operation, size: int, shared: int, topology: Topology, machine: Machine, rank: int
) -> float:
    """Return the seconds of one operation on otherwise idle links."""
    if op.name == "recv" or size == 1:
        return 0.0
    factor, steps = VOLUMES[op.name](size) if op.name in VOLUMES else (1, 1)
    share = 0.0
    if op.name == "send":
        ends = topology.node_of(np.array([rank, max(op.peer, 0)]))
        share = float(ends[0] != ends[1])
    elif shared < size:
        share = (size - shared) / (size - 1) if op.name == "all_to_all" else 1 / shared
    amount = op.num_bytes * factor / GB
    latency = machine.latency_inter_node if share else machine.latency_intra_node
    inside = amount * (1 - share) / machine.bandwidth_intra_node
    return float(max(inside, amount * share / machine.bandwidth_inter_node) + steps * latency)


@dataclass(frozen=True, eq=False, repr=False)
class RehearsalReport:
    """The findings of a rehearsal. ``print`` shows them.

    Attributes:
        world_size: the ranks of the job.
        topology: the node of each rank.
        names: the names of ranks and groups.
        traces: the trace of each rank that was played.
        mismatches: each with ``.group``, ``.ranks``, ``.operation`` and ``.text``.
        warnings: lines about ranks that differ without a mismatch.
        raised: rank to the error that it raised.
        lines: rank to the line of the program at which it raised.
        witnesses: the random ranks that were compared with the corner that stands for them.
        links: the machine whose links give seconds.
        device: ``"cpu"`` or ``"meta"``.
        seconds: how long the rehearsal took.
    """

    world_size: int
    topology: Topology
    names: Names
    traces: Mapping[int, Trace]
    mismatches: tuple[Mismatch, ...]
    warnings: tuple[str, ...]
    raised: Mapping[int, BaseException]
    lines: Mapping[int, str]
    witnesses: tuple[int, ...]
    links: str
    device: str
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether nothing mismatched and no rank raised."""
        return not self.mismatches and not self.raised

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that were played."""
        return tuple(sorted({*self.traces, *self.raised}))

    @property
    def traffic(self) -> dict[str, AxisTraffic]:
        """The traffic of the busiest played rank over each axis."""
        rows: dict[str, AxisTraffic] = {}
        for trace in self.traces.values():
            machine = MACHINES[self.links]
            for axes, row in axis_traffic(trace, self.names, self.topology, machine).items():
                best = rows.get(axes, row)
                most = max(best, row, key=lambda each: (each.num_bytes, each.operations))
                crosses = best.crosses_nodes or row.crosses_nodes
                rows[axes] = most._replace(crosses_nodes=crosses)
        return rows

    @property
    def bytes_by_axis(self) -> dict[str, int]:
        """The bytes that the busiest played rank hands over, by axes: ``{"dp sp": 4096}``."""
        return {axes: row.num_bytes for axes, row in self.traffic.items()}

    @property
    def not_proved(self) -> str:
        """The limits of this rehearsal, as a sentence."""
        operations = (op for trace in self.traces.values() for op in trace.operations)
        any_source = any(op.name == "recv" and op.peer < 0 for op in operations)
        parts = [NOT_PROVED]
        parts += ["receives from any rank are not compared"] * any_source
        left = self.world_size - len(self.ranks)
        lines = [t.reads["played"][1] for t in self.traces.values() if "played" in t.reads]
        stand = "ranks that were not played pass the values of played ones, read at"
        parts += [f"{stand} {lines[0]}"] if lines else []
        parts += [f"{left:,} of {self.world_size:,} ranks were not played"] * bool(left)
        return "; ".join(parts)

    def collectives(self, rank: int) -> tuple[Operation, ...]:
        """Return the operations of a played rank, in the order of its program."""
        return tuple(self.traces[rank].operations)

    @quotes_call("report.raise_if_mismatched")
    def raise_if_mismatched(self) -> None:
        """Raise if a check failed or a rank raised.

        Raises:
            CollectiveError: with each mismatch and each error as a line.
        """
        if self.ok:
            return
        texts = [mismatch.text for mismatch in self.mismatches]
        lines = [line.strip() for text in texts for line in text.split("\n")] + self._raised_lines()
        what = [count_noun(len(texts), "mismatch")] * bool(texts)
        what += [f"{count_noun(len(self.raised), 'rank')} raised"] * bool(self.raised)
        raise CollectiveError(
            f"{' and '.join(what)} in a job of {self.world_size} ranks.",
            *shorten(lines, 2 * MAX_LINES),
            fix="make the ranks run equal operations at these lines.",
        )

    def _raised_lines(self) -> list[str]:
        """Return a line for each error, with the ranks that raised it."""
        ranks: dict[str, list[int]] = {}
        for rank, error in self.raised.items():
            where = f" at {self.lines[rank]}" if self.lines.get(rank) else ""
            words = ADDRESS.sub("", str(error).partition("\n")[0])
            text = f"raised{where}: {type(error).__name__}: {words}"
            text = text if text.endswith(".") else f"{text}."
            ranks.setdefault(text, []).append(rank)
        return [
            f"{self.names.rank(each[0])}"
            + (f" and {len(each) - 1} more" if each[1:] else "")
            + f" {text}"
            for text, each in ranks.items()
        ]

    def as_dict(self) -> dict[str, object]:
        """Return the report in JSON types."""
        return {
            "ok": self.ok,
            "world_size": self.world_size,
            "nodes": self.topology.num_nodes,
            "sizes": self.names.layouts[0].sizes,
            "device": self.device,
            "ranks": [*self.ranks],
            "witnesses": [*self.witnesses],
            "mismatches": [
                {
                    "axes": [*mismatch.group.axes],
                    "members": [*mismatch.group.members],
                    "ranks": [*mismatch.ranks],
                    "operation": str(mismatch.operation),
                    "line": mismatch.operation.line,
                    "text": mismatch.text,
                    "read": mismatch.read,
                }
                for mismatch in self.mismatches
            ],
            "warnings": [*self.warnings],
            "raised": {
                str(rank): {
                    "error": f"{type(error).__name__}: {error}",
                    "line": self.lines.get(rank),
                }
                for rank, error in self.raised.items()
            },
            "memory": dict(self._memory()[1]),
            "links": self.links,
            "traffic": {axes: row._asdict() for axes, row in self.traffic.items()},
            "seconds": round(self.seconds, 2),
            "not_proved": self.not_proved,
        }

    def _memory(self) -> tuple[int, Mapping[str, int]]:
        """Return the rank that holds most, and what it holds."""
        held = {rank: trace.memory for rank, trace in self.traces.items()}
        rank = max(held, key=lambda r: held[r].get("peak", sum(held[r].values())), default=0)
        return rank, held.get(rank, {})

    def __str__(self) -> str:
        return self.draw()

    def draw(self, *, width: int = 80, ascii: bool = False) -> str:
        """Return the report as text."""
        lines = [self._headline(), *map(str.rstrip, self._checks())]
        lines += ["", self._table(width, ascii=ascii)] if self.traffic else []
        for texts in (self._mismatch_texts(), self._raised_lines(), self.warnings):
            if texts:
                prefix = "warning: " if texts is self.warnings else ""
                lines += ["", *(f"{prefix}{text}" for text in shorten(texts, MAX_LINES))]
        return "\n".join([*lines, "", f"{self.not_proved}."])

    def _mismatch_texts(self) -> list[str]:
        """Return the text of each mismatch; of equal ones of several groups that of the first."""
        alike = group_by(((each.group.axes, each.lines), each) for each in self.mismatches)
        more = "\n  The same in {} more groups along {}."
        return [
            first.text + more.format(len(rest), first.group.name) * bool(rest)
            for first, *rest in alike.values()
        ]

    def _headline(self) -> str:
        played = len(self.ranks) - len(self.witnesses)
        text = f"{self.world_size:,} ranks, {self.names.layouts[0].sizes_text}. Played: {played}"
        if self.witnesses:
            same = (
                ""
                if any("stands for it" in line for line in self.warnings)
                else (", which do the same as the ranks that stand for them")
            )
            text += f", and {len(self.witnesses)} random ranks{same}"
        return f"{text}, in {self.seconds:.1f} s."

    def _checks(self) -> list[str]:
        """Return a row for each check."""
        per_rank = max((len(trace.groups) for trace in self.traces.values()), default=0)
        total = sum(len(trace.operations) for trace in self.traces.values())
        messages = sum(op.is_message for t in self.traces.values() for op in t.operations)
        failed = Counter(mismatch.check for mismatch in self.mismatches)
        incomplete = "; ranks that raised are compared up to their error" if self.raised else ""
        passed = {
            "collectives": f"equal sequences on all played ranks of each group{incomplete}",
            "p2p": f"every send has its receive{incomplete}" if messages else "no sends",
            "order": "not checked, since other operations do not match"
            if self.mismatches
            else "no cycle of ranks that wait for each other",
        }
        rows = [("groups", f"{per_rank} on a rank")]
        for check, text in passed.items():
            number = failed[check]
            rows.append((check, f"{count_noun(number, 'mismatch')}, below" if number else text))
        rows += [("raised", f"{count_noun(len(self.raised), 'rank')}, below")] * bool(self.raised)
        rows += [("memory", self._memory_text()), ("operations", f"{total:,} compared")]
        return [f"  {line}" for line in format_table(rows).split("\n")]

    def _memory_text(self) -> str:
        rank, held = self._memory()
        peak = held.get("peak")
        parts = {name: size for name, size in held.items() if name != "peak"}
        rest = "activations are unknown" if peak is None else f"{format_bytes(peak)} at the peak"
        if not parts:
            return f"{rest} on rank {rank}" if peak else "unknown: no optimizer has taken a step"
        total = format_bytes(sum(parts.values()))
        texts = [f"{name} {format_bytes(size)}" for name, size in parts.items()]
        return f"{total} on rank {rank} after a step: {', '.join(texts)}; {rest}"

    def _table(self, width: int, *, ascii: bool) -> str:
        header = ["axis", "operations", "a rank hands over", "crosses nodes"]
        header.append(f"seconds, {self.links}")
        rows = [
            (
                axes,
                str(row.operations),
                format_bytes(row.num_bytes),
                "yes" if row.crosses_nodes else "no",
                f"{row.seconds:.3g}",
            )
            for axes, row in sorted(self.traffic.items(), key=lambda item: -item[1].seconds)
        ]
        return format_table(rows, header, width=width, ascii=ascii)
