"""Two threads that join as two ranks are refused, and both know the reason."""

from __future__ import annotations

import threading
from pathlib import Path

import torch.distributed as dist

import meshkit


def join_in_threads(url: str, ranks: tuple[int, int]) -> dict[str, str]:
    """Let two threads call init, and return what each got."""
    outcomes: dict[str, str] = {}

    def join(name: str, rank: int) -> None:
        try:
            meshkit.init(rank=rank, world_size=2, init_method=url, arrival_timeout=20)
            outcomes[name] = "joined"
        except meshkit.MeshkitError as error:
            outcomes[name] = f"{type(error).__name__}: {error}"

    threads = [
        threading.Thread(target=join, args=args)
        for args in zip(("first", "second"), ranks, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not dist.is_initialized()
    return outcomes


def test_two_threads_are_not_two_ranks(tmp_path: Path) -> None:
    """The refused thread reports to the one that waits for its rank."""
    (outcomes,) = meshkit.spawn(
        join_in_threads, 1, (f"file://{tmp_path}/store", (0, 1)), timeout=60
    )
    refused = next(text for text in outcomes.values() if "SecondThreadError" in text[:20])
    assert "another thread of this process is joining as rank " in refused
    assert "A process is one rank: torch has one default process group in each process." in refused
    assert "Fix: start a process for each rank: meshkit.spawn(fn, 2), or torchrun" in refused
    told = next(text for text in outcomes.values() if text is not refused)
    assert told.startswith("DisagreementError")
    assert "gave up: SecondThreadError: " in told
