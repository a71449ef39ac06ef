"""Where the time of a start went: each phase, its slowest rank, and what each rank holds. Pure.

Times are seconds on one clock that all processes of a machine share::

    start         from the parent's first line to the rank's own: a process comes into being
    gate          until the last rank of the job is there; not counted
    store         meshkit opens the store of the job and takes its seat
    check-in      ranks meet there, compare what ``init`` was given, and agree that all are there
    world group   torch's default group; of the peer its store too
    made          ranks meet once more: all have the group, or none
    agreement     ranks compare what ``build_mesh`` was given
    groups        the groups of the mesh
    all made      ranks meet again, as above
    first <axis>  the first all-reduce over an axis
    rest          what lies between: imports inside, arguments, words
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

RESOLVER = 5.0  # seconds after which the resolver of glibc asks again, or gives up
STALL = 0.8 * RESOLVER  # starts differ by some tenths of a second: more than this is a wait
START, GATE, REST = "start", "gate", "rest"


@dataclass(frozen=True)
class Span:
    """One phase of one rank, from ``began`` to ``ended``."""

    phase: str
    began: float
    ended: float

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended - self.began


@dataclass(frozen=True)
class Ledger:
    """What one rank wrote down of its start.

    Attributes:
        rank: whose it is.
        spans: its phases in order; the first is ``start``, the second ``gate``.
        sums: axis to what the first all-reduce of ones over it gave.
        descriptors: open files at the end.
        threads: of the process at the end.
        cpu: seconds of processor time that the process took since it passed the gate, all threads.
        kib: by how many KiB the memory of the process has grown since it passed the gate.
    """

    rank: int
    spans: tuple[Span, ...]
    sums: dict[str, float]
    descriptors: int
    threads: int
    cpu: float
    kib: int

    def seconds(self, phase: str) -> float:
        """How long a phase took, all its spans together; 0 where there was none."""
        return sum(span.seconds for span in self.spans if span.phase == phase)

    @property
    def passed(self) -> float:
        """When this rank passed the gate."""
        return self.spans[1].ended

    @property
    def finished(self) -> float:
        """When its last all-reduce had come to an end."""
        return self.spans[-1].ended

    @property
    def rest(self) -> float:
        """What no phase accounts for, between the gate and the end."""
        return self.finished - self.passed - sum(span.seconds for span in self.spans[2:])


@dataclass(frozen=True)
class Phase:
    """One phase of a job: the median over ranks, the slowest, and which rank that is."""

    name: str
    median: float
    slowest: float
    rank: int


def joining(ledgers: Sequence[Ledger]) -> float:
    """Seconds from when the last process was there to the last rank's last all-reduce."""
    return max(one.finished for one in ledgers) - max(one.spans[0].ended for one in ledgers)


def whole(ledgers: Sequence[Ledger]) -> float:
    """Seconds from the parent's first line to the last rank's last all-reduce."""
    return max(one.finished for one in ledgers) - min(one.spans[0].began for one in ledgers)


def processor(ledgers: Sequence[Ledger]) -> float:
    """Seconds of processor time that all ranks took together: it does not count who waits."""
    return sum(one.cpu for one in ledgers)


def phases(ledgers: Sequence[Ledger]) -> list[Phase]:
    """The phases of a job in their order, ``gate`` left out and ``rest`` at the end.

    Example:
        >>> spans = Span("start", 0, 1), Span("gate", 1, 2), Span("groups", 2, 5)
        >>> phases([Ledger(3, spans, {}, 9, 2, 0.5, 10)])[1]
        Phase(name='groups', median=3, slowest=3, rank=3)
    """
    names = dict.fromkeys(span.phase for one in ledgers for span in one.spans)
    found = [_phase(name, {one.rank: one.seconds(name) for one in ledgers}) for name in names]
    rest = _phase(REST, {one.rank: one.rest for one in ledgers})
    return [one for one in (*found, rest) if one.name != GATE]


def share(ledgers: Sequence[Ledger], phase: str, among: Sequence[str]) -> float:
    """What part of the time of several phases one of them is, in percent; the median over ranks."""
    parts = [100 * one.seconds(phase) / max(sum(map(one.seconds, among)), 1e-9) for one in ledgers]
    return median(parts)


def stalled(ledgers: Sequence[Ledger], answered: float) -> Phase | None:
    """The phase in which a rank waited for a name that nobody answered; None without one.

    Args:
        ledgers: of a job whose ranks met at a TCP store.
        answered: seconds of the same start with names left alone, for comparison.

    Example:
        >>> spans = Span("start", 0, 1), Span("gate", 1, 1), Span("store", 1, 6.6)
        >>> stalled([Ledger(7, spans, {}, 9, 2, 0.5, 10)], 0.4)
        Phase(name='store', median=5.6, slowest=5.6, rank=7)
    """
    slowest = max(phases(ledgers)[1:], key=lambda one: one.slowest)
    if slowest.slowest < STALL or joining(ledgers) < answered + STALL:
        return None
    return slowest


def stall(ledgers: Sequence[Ledger], answered: float) -> str:
    """The stall in words."""
    found = stalled(ledgers, answered)
    if found is None:
        return "none"
    waited = f"{found.name}: rank {found.rank} waited {found.slowest:.1f} s"
    return f"{waited}, and {answered:.1f} s in all without reverse look-ups"


def ledger_table(ledgers: Sequence[Ledger]) -> str:
    """The ledger of a job as text: a line a phase, then what a rank holds."""
    head = f"  {'phase':<12} {'median s':>9} {'slowest s':>10}  rank"
    lines = [
        f"  {one.name:<12} {one.median:>9.4f} {one.slowest:>10.4f}  {one.rank}"
        for one in phases(ledgers)
    ]
    most = max(ledgers, key=lambda one: one.descriptors)
    held = (
        f"  a rank holds at most {most.descriptors} descriptors, "
        f"{max(one.threads for one in ledgers)} threads, "
        f"{max(one.kib for one in ledgers) / 1024:.1f} MiB more than before; "
        f"processor time of all {processor(ledgers):.2f} s"
    )
    return "\n".join([head, *lines, held])


def _phase(name: str, seconds: dict[int, float]) -> Phase:
    slowest = max(seconds, key=lambda rank: seconds[rank])
    return Phase(name, median(seconds.values()), seconds[slowest], slowest)
