"""Compare a repeated ``init`` with the default group that exists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import cast

import torch

from ..core.errors import LaunchError
from .current_job import Job
from .device import parse_device


def check_same_job(
    job: Job,
    arguments: Mapping[str, object],
    timeout: timedelta | None,
    arrival_timeout: timedelta | None,
) -> Job:
    """Return the job, with the timeouts of this call if someone else created the group."""
    current = {name: getattr(job.world, name) for name in arguments}
    if job.generation:  # else no mesh of meshkit has used its timeouts yet
        times = {"timeout": timeout, "arrival_timeout": arrival_timeout}
        arguments = {**arguments, **{name: t for name, t in times.items() if t is not None}}
        current |= {"timeout": job.timeout, "arrival_timeout": job.arrival_timeout}
    differing = [n for n, value in arguments.items() if not _is_same(current[n], value)]
    if differing:
        text = ", ".join(f"{name}={current[name]}" for name in differing)
        raise LaunchError(
            f"the default process group already exists, with {text}.",
            fix="the first init() of the program decides; or meshkit.shutdown() before this one.",
        )
    wait = arrival_timeout or timeout or job.arrival_timeout
    return replace(job, timeout=timeout or job.timeout, arrival_timeout=wait)


def _is_same(current: object, argument: object) -> bool:
    """Return whether an argument agrees with a value: ``"cuda"`` agrees with ``cuda:3``."""
    if isinstance(current, torch.device):
        device = parse_device(cast(str | torch.device, argument))
        return device.type == current.type and device.index in (None, current.index)
    return str(current).lower() == str(argument).lower()
