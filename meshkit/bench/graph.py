"""Seconds of calls that a CUDA graph holds: launched together, so that no launch counts.

::

    side stream     call, call, ...                      to warm up
    capture         call, call, ..., call                recorded, not run
    replay          once to warm up, then between two events, again and again

As nccl-tests do with their option ``-G``. On CUDA alone; this has never been run on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from .measure import settle

REPLAYS = 5  # that count; one more does not


def captured(
    call: Callable[[], None], warm_up: int, calls: int, device: torch.device
) -> torch.cuda.CUDAGraph:
    """So many calls in a graph, after some on a side stream. Collective as the call is.

    Args:
        call: begins a collective and waits for it on the stream.
        warm_up: how many calls are run before; one at the least, as the first makes communicators.
        calls: how many the graph holds.
        device: where the tensors lie, a CUDA device.
    """
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(max(warm_up, 1)):
            call()
    torch.cuda.current_stream(device).wait_stream(side)
    settle(device)
    graph = torch.cuda.CUDAGraph()
    # other threads, such as nccl's watchdog, may ask for events meanwhile
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(calls):
            call()
    return graph


def seconds_by_graph(
    call: Callable[[], None], warm_up: int, calls: int, device: torch.device
) -> list[float]:
    """What a call took on this rank, in each replay of a graph. Collective as the call is.

    Args:
        call: as for :func:`captured`, and so are the others.
        warm_up: how many calls are run before.
        calls: how many the graph holds.
        device: where the tensors lie.

    Returns:
        ``REPLAYS`` times in seconds, each the mean over the calls of one replay.
    """
    graph = captured(call, warm_up, calls, device)
    graph.replay()
    settle(device)
    took = []
    for _ in range(REPLAYS):
        began, ended = (torch.Event(device, enable_timing=True) for _ in range(2))
        began.record()
        graph.replay()
        ended.record()
        settle(device)
        took.append(began.elapsed_time(ended) / 1e3 / calls)
    return took
