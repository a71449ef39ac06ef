"""A rank ends or stops in the middle of a step, in the ways of real programs: the others go on.

Each survivor raises within a second after the first one, names the rank, and recovers. The rank
ends inside a model of DistributedDataParallel, in its data, in a thread, or by an error that no
program expects. Times count from the first report, since each way has its own time until a rank can
see it.
"""

from __future__ import annotations

import ast
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import meshkit
from meshkit.testing.faults import Played, Strike, play
from tests.promises import BUSY

GUARD, STEPS, LOST_AT = 8.0, 5, 2
ANSWERS = 4.0  # seconds until the guard reports


class Broken(Dataset[torch.Tensor]):
    """Samples that cannot be read in a worker."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        raise ZeroDivisionError(f"sample {index}")


def fail(error: BaseException) -> None:
    raise error


def wait_for_a_dead_thread() -> None:
    """Wait for the batches of a thread that has ended with an error."""
    batches: queue.Queue[int] = queue.Queue()
    threading.excepthook = lambda _: None
    threading.Thread(target=fail, args=(OSError("disk"),), daemon=True).start()
    batches.get(timeout=GUARD + 12)


def read_in_a_worker() -> None:
    next(iter(DataLoader(Broken(), num_workers=1, multiprocessing_context="fork")))


@dataclass(frozen=True)
class End:
    """How a rank ends: where in a step, by which act, and what the report says of it."""

    where: str  # "forward", "backward" or "data"
    act: Callable[[Strike], Any]
    text: str  # words of the report
    names: str = "missing"  # how the report names the rank: missing, behind or left
    second: float = 0.0  # seconds after which a second rank is killed; 0 means never


LEFT = "left with {}".format
ENDS: Mapping[str, End] = {
    "killed in a forward": End("forward", Strike.kill, "it has ended"),
    "exit in a hook": End("backward", lambda _: os._exit(7), "it has ended"),
    "error in a backward": End("backward", lambda _: 1 // 0, LEFT("ZeroDivisionError"), "left"),
    "error in a worker": End(
        "data", lambda _: read_in_a_worker(), LEFT("ZeroDivisionError"), "left"
    ),
    "thread": End("data", lambda _: wait_for_a_dead_thread(), "in no collective", "behind"),
    "stopped in a backward": End("backward", Strike.stop, "it is stopped"),
    "memory": End("forward", lambda _: fail(MemoryError()), LEFT("MemoryError"), "left"),
    "exit": End("data", lambda _: fail(SystemExit(3)), LEFT("SystemExit: 3"), "left"),
    "interrupt": End(
        "backward", lambda _: fail(KeyboardInterrupt()), LEFT("KeyboardInterrupt"), "left"
    ),
    "two within a second": End("forward", Strike.kill, "it has ended", second=0.6),
}


# the ways of which ranks far from the lost one hear later than its neighbors
OF_EIGHT = ("killed in a forward", "thread", "stopped in a backward", "two within a second")


def train(strike: Strike, how: str, ranks: int) -> Any:
    """Train until a rank ends; return the reports of this rank, and the size and step then."""
    end, odd = ENDS[how], ranks - 2
    mesh = meshkit.build_mesh(dp=-1, tp=2, timeout=90, arrival_timeout=60)
    step, reports = 0, []
    is_odd = mesh.rank == odd
    is_second = bool(end.second) and mesh.rank == 0

    def strike_at(where: str, *_: object) -> None:
        if step == LOST_AT and where == end.where and is_odd:
            strike.note()
            end.act(strike)
        if step == LOST_AT and where == end.where and is_second:
            strike.later(end.second, strike.kill)

    while step < STEPS and not mesh.recovery.is_over:
        if not mesh.inside:
            mesh = mesh.recover(step=step, arrival_timeout=3)
            continue
        try:
            torch.manual_seed(0)
            with mesh.guard(timeout=GUARD):
                layer = torch.nn.Linear(4, 4)
                model = DistributedDataParallel(layer, process_group=mesh.group("dp"))
                model.register_forward_pre_hook(partial(strike_at, "forward"))
                layer.weight.register_hook(partial(strike_at, "backward"))
                while step < STEPS:
                    strike_at("data")
                    model(torch.ones(2, 4)).sum().backward()
                    mesh.commit()
                    dist.all_reduce(torch.ones(1), group=mesh.group("tp"))
                    step += 1
        except meshkit.CollectiveError as error:
            at = time.monotonic()
            reports.append((at, error.missing_ranks, error.behind, str(error)))
            mesh = mesh.recover(step=step, arrival_timeout=3)
            step = mesh.recovery.step
    mesh.close()
    return reports, mesh.layout.num_ranks, step


AT_ONCE = 2
JOBS: dict[str, Callable[[], Played]] = {
    f"test_the_others_raise_name_it_and_recover[{how}-{ranks}]": partial(
        play, train, ranks, (how, ranks), timeout=120
    )
    for how in ENDS
    for ranks in (4, 8)
}


@pytest.mark.parametrize(
    ("how", "ranks"),
    [
        pytest.param(
            *(how, ranks),
            marks=pytest.mark.slow if (ranks == 8) == (how in OF_EIGHT) else pytest.mark.nightly,
        )
        for how in ENDS
        for ranks in (4, 8)
    ],
)
def test_the_others_raise_name_it_and_recover(how: str, ranks: int, played: Played) -> None:
    end, odd = ENDS[how], ranks - 2
    gone = {odd, 0} if end.second else {odd}
    assert played.fired == odd
    times = []
    for rank in {*range(ranks)} - gone:
        assert rank in played.outcomes, (rank, played)
        assert played.outcomes[rank].kind == "returned", (rank, played.outcomes[rank])
        reports, size, step = ast.literal_eval(played.outcomes[rank].text)
        at, missing, behind, text = reports[0]
        times.append(at)
        assert end.text in text, text
        assert f"rank {odd} (" in text, text
        if end.names == "missing":
            assert {odd} <= {*missing} <= gone, (missing, text)
        elif end.names == "behind":
            assert (missing, odd in behind) == ((), True), text
        assert size == (ranks - len(gone)) // 2 * 2, size
        assert step in (STEPS, LOST_AT), step  # that of the recovery on a spare
    assert max(times) - min(times) < 1 + BUSY, times
    assert min(times) - played.at < (end.second or GUARD) + ANSWERS + BUSY, times
