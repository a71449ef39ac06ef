"""Seconds of one call, again and again.

On the cpu by the host's clock. On CUDA by events on the stream, so that neither the launch nor the
host's own work counts; calls are launched one by one (as nccl-tests without its option ``-G``; with
it: ``graph``); that has never been run. On other accelerators by the host's clock, with a wait for
the device around each call; neither has that.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise

import torch


def seconds(
    call: Callable[[], None], warm_up: int, calls: int, device: torch.device
) -> list[float]:
    """What each call took on this rank. Collective as the call is.

    The calls follow each other with nothing between them: the first ones, which are not counted,
    bring the ranks of a group into step.

    Args:
        call: begins a collective and waits for it.
        warm_up: how many calls are not counted, 0 or more.
        calls: how many are.
        device: where the tensors lie.

    Returns:
        ``calls`` times in seconds.
    """
    for _ in range(warm_up):
        call()
    timed = _by_events if device.type == "cuda" else _by_clock
    return timed(call, calls, device)


def settle(device: torch.device) -> None:
    """Wait for what was queued on an accelerator; a cpu queues nothing."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _by_clock(call: Callable[[], None], calls: int, device: torch.device) -> list[float]:
    settle(device)
    took = []
    for _ in range(calls):
        began = time.perf_counter()
        call()
        settle(device)
        took.append(time.perf_counter() - began)
    return took


def _by_events(call: Callable[[], None], calls: int, device: torch.device) -> list[float]:
    """An event before the first call and one after each; the stream is read once, at the end."""
    events = [torch.Event(device, enable_timing=True) for _ in range(calls + 1)]
    settle(device)
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    settle(device)
    return [before.elapsed_time(after) / 1e3 for before, after in pairwise(events)]
