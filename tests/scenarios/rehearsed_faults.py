"""Twenty faults of a job of 8,192 ranks, for rehearsals.

``python -m tests.scenarios.rehearsed_faults`` rehearses each of them, and prints what was found.

A step of the job sends activations along pp, gathers logits over tp, reduces gradients over dp and
cp, and clips. A fault changes what the ranks at some coordinates do.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist

import meshkit
from meshkit.layout.layout import Layout
from meshkit.mesh.mesh import Mesh
from meshkit.rehearse.report import RehearsalReport
from meshkit.testing import rehearse

SIZES = {"pp": 2, "dp": 256, "cp": 2, "tp": 8}
WORLD_SIZE, NODES = 8192, 1024
MICRO_STEPS = 2
HIDDEN, VOCABULARY = 16, 64

Coordinate = Mapping[str, int]
Test = Callable[[Coordinate], bool]


def at_last(*axes: str) -> Test:
    """Return the test of a coordinate for the last index along some axes."""
    return lambda at: all(at[axis] == SIZES[axis] - 1 for axis in axes)


def at_first(*axes: str) -> Test:
    """Return the test of a coordinate for the first index along some axes."""
    return lambda at: all(at[axis] == 0 for axis in axes)


def at_odd_sum(at: Coordinate) -> bool:
    """Return whether a coordinate has another order: the colors of a chessboard of dp and tp."""
    return (at["dp"] + at["tp"]) % 2 == 1


@dataclass(frozen=True)
class Fault:
    """A fault: the ranks that have it, and how a report must name it."""

    is_odd: Test
    axes: str  # of the group whose ranks do not match; empty if the odd ranks raise
    words: str  # in the text of the mismatch

    def is_named_by(self, report: RehearsalReport) -> bool:
        """Return whether the report names the axes, the operation and a rank with the fault."""
        names = report.names
        group = f"the {self.axes} group ["  # ranks that wait for each other are at several groups
        texts = [m.text for m in report.mismatches if group in m.text]
        if not self.axes:
            texts = [f"{names.rank(rank)}: {error}" for rank, error in report.raised.items()]
        odd = [names.rank(rank) for rank in report.ranks if self.is_odd(names.coordinate(rank))]
        return any(self.words in text and any(rank in text for rank in odd) for text in texts)


FAULTS = {
    "a collective over tp is skipped": Fault(at_last("tp"), "tp", "all_gather"),
    "gradients are not reduced": Fault(at_last("dp"), "dp cp", "all_reduce f32"),
    "groups in another order": Fault(at_odd_sum, "dp", "wait for each other"),
    "an uneven vocabulary": Fault(at_last("pp", "tp"), "tp", "all_gather f32 [2, 7]"),
    "dp without cp": Fault(at_last("cp"), "dp cp", "all_reduce f32"),
    "an odd micro batch": Fault(at_last("dp"), "dp", "all_reduce f32 [1]"),
    "another root": Fault(at_last("dp"), "dp", "root"),
    "another dtype": Fault(at_last("dp"), "dp cp", "all_reduce bf16"),
    "another shape": Fault(at_last("dp", "cp"), "dp cp", "all_reduce f32 [17]"),
    "another reduction": Fault(at_first("dp", "cp"), "dp cp", "all_reduce f32 [16] max"),
    "another collective": Fault(at_last("tp"), "tp", "all_reduce"),
    "a missing recv": Fault(at_last("pp"), "pp", "no recv"),
    "a swapped peer": Fault(at_first("pp", "tp"), "pp", "no send"),
    "another tag": Fault(at_first("pp"), "pp", "tag 7"),
    "a message of another dtype": Fault(at_first("pp"), "pp", "send bf16"),
    "a message of another size": Fault(at_last("pp"), "pp", "recv f32 [2, 8]"),
    "an extra barrier": Fault(at_first("pp", "dp", "cp", "tp"), "pp dp cp tp", "barrier"),
    "a log by one rank": Fault(at_first("pp", "dp", "cp", "tp"), "tp", "all_reduce f32 [] sum"),
    "another step count": Fault(at_last("pp"), "pp", "no"),
    "a batch that does not divide": Fault(at_last("dp"), "", "3 samples"),
}


def train(fault: str = "") -> None:
    """Run a step of the job, with a fault."""
    meshkit.init(seed=0, backend="nccl", device="cpu")
    with meshkit.build_mesh(SIZES, groups=[("dp", "cp")]) as mesh:
        has = fault if fault and FAULTS[fault].is_odd(mesh.coordinate) else ""
        if has == "a batch that does not divide":
            raise ValueError("3 samples do not divide over 2 micro batches.")
        root = 1 if has == "another root" else 0
        dist.broadcast(torch.zeros(1), group=mesh.group("dp"), group_src=root)
        for _ in range(1 if has == "another step count" else 2):
            for _ in range(MICRO_STEPS + (has == "an odd micro batch")):
                run_stage(mesh, has)
                dist.all_reduce(torch.ones(1), group=mesh.group("dp"))  # the number of tokens
            reduce_gradients(mesh, has)
        if has == "a log by one rank":
            dist.all_reduce(torch.tensor(0.5), group=mesh.group("tp"))
        if has == "an extra barrier":
            dist.barrier()
        dist.barrier()


def run_stage(mesh: Mesh, has: str) -> None:
    """Receive activations, run the layer of a stage, and send or compute logits."""
    peers = [int(rank) for rank in mesh.peers("pp")]
    pipe, tp, stage = mesh.group("pp"), mesh.group("tp"), mesh.coordinate["pp"]
    hidden = torch.ones(2, HIDDEN)
    if stage > 0 and has != "a missing recv":
        held = hidden[:, :8].contiguous() if has == "a message of another size" else hidden
        dist.recv(held, peers[stage - 1], group=pipe)
    dist.all_reduce(hidden, group=tp)
    if stage + 1 < len(peers):
        sent = hidden.bfloat16() if has == "a message of another dtype" else hidden
        if has == "a swapped peer":
            dist.recv(sent, peers[stage + 1], group=pipe)
        else:
            dist.send(sent, peers[stage + 1], group=pipe, tag=7 * (has == "another tag"))
    columns = VOCABULARY // mesh.size("tp") - (has == "an uneven vocabulary")
    logits = torch.ones(2, columns)
    if has == "another collective":
        dist.all_reduce(logits, group=tp)
    elif has != "a collective over tp is skipped":
        dist.all_gather([torch.empty_like(logits) for _ in range(mesh.size("tp"))], logits, tp)


def reduce_gradients(mesh: Mesh, has: str) -> None:
    """Average gradients over dp and cp, and reduce their norm over tp."""
    joint, dp, tp = mesh.group("dp", "cp"), mesh.group("dp"), mesh.group("tp")
    gradient = torch.ones(HIDDEN + (has == "another shape"))
    gradient = gradient.bfloat16() if has == "another dtype" else gradient
    op = dist.ReduceOp.MAX if has == "another reduction" else dist.ReduceOp.SUM
    if has != "gradients are not reduced":
        dist.all_reduce(gradient, op, dp if has == "dp without cp" else joint)
    for group in (tp, dp) if has == "groups in another order" else (dp, tp):
        dist.all_reduce(torch.ones(3), group=group)


def play(fault: str, *, few: bool = False) -> RehearsalReport:
    """Rehearse the job with a fault, on all corners or on the first and last ranks only."""
    layout = Layout(**SIZES)
    ends = itertools.product(*({0, size - 1} for size in SIZES.values()))
    ranks = sorted(layout.rank(**dict(zip(SIZES, end, strict=True))) for end in ends)
    return rehearse(train, WORLD_SIZE, (fault,), nodes=NODES, ranks=ranks if few else "corners")


def main() -> int:
    """Rehearse the job with each fault; return 1 if a report does not name the fault."""
    began, missed = time.monotonic(), 0
    for name, fault in FAULTS.items():
        report = play(name)
        is_named = fault.is_named_by(report)
        missed += not is_named
        texts = [m.text for m in report.mismatches] or [*map(str, report.raised.values())]
        word = "named" if is_named else "MISSED"
        print(f"{word}: {name} ({len(report.ranks)} ranks, {report.seconds:.1f} s)")
        print(f"  {(texts or ['nothing'])[0]}", flush=True)
    named, seconds = len(FAULTS) - missed, time.monotonic() - began
    print(f"{named} of {len(FAULTS)} named in {seconds:.1f} s")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
