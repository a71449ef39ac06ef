"""Seconds of repeated calls.

On the cpu the host's clock measures them. On CUDA events on the stream do, so that neither the
launch nor the host's own work counts. Calls are launched one by one, as in nccl-tests without its
option ``-G``. On other accelerators the host's clock measures each call together with a
synchronization. Neither CUDA nor other accelerators have ever been run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise

import torch


def time_calls(
    call: Callable[[], None], warm_up: int, calls: int, device: torch.device
) -> list[float]:
    """Return the seconds of each call on this rank, made at once after the warm-up calls."""
    for _ in range(warm_up):
        call()
    timed = _by_events if device.type == "cuda" else _by_clock
    return timed(call, calls, device)


def synchronize(device: torch.device) -> None:
    """Wait for queued work of an accelerator; a cpu queues nothing."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _by_clock(call: Callable[[], None], calls: int, device: torch.device) -> list[float]:
    synchronize(device)
    seconds = []
    for _ in range(calls):
        began = time.perf_counter()
        call()
        synchronize(device)
        seconds.append(time.perf_counter() - began)
    return seconds


def _by_events(call: Callable[[], None], calls: int, device: torch.device) -> list[float]:
    """Record an event before the first call and one after each, and read all at the end."""
    events = [torch.Event(device, enable_timing=True) for _ in range(calls + 1)]
    synchronize(device)
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    synchronize(device)
    return [before.elapsed_time(after) / 1e3 for before, after in pairwise(events)]
