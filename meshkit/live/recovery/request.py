"""The arguments of ``mesh.recover`` and ``mesh.admit``, and the calls that are refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from ...core.errors import MeshkitError, SpecError
from ...core.validate import parse_integer
from ...launch.current_job import Job
from ...launch.store.deadline import Time, parse_timeout
from ..group_registry import MeshGroups


@dataclass(frozen=True)
class RecoveryRequest:
    """The arguments of ``mesh.recover`` or ``mesh.admit`` on this rank, checked.

    Attributes:
        step: the number of completed steps.
        arrival_timeout: how long ranks wait for each other.
        min_ranks: the least number of ranks with which to go on.
        same: the values that must be equal on all ranks that pass them.
    """

    step: int | None
    arrival_timeout: timedelta | None
    min_ranks: int | None
    same: Mapping[str, str]

    @classmethod
    def of_admission(cls, step: object) -> RecoveryRequest:
        """Return the checked arguments of ``mesh.admit``."""
        return cls(_parse_count("step", step, 0), None, None, {})

    @classmethod
    def of(cls, step: object, arrival_timeout: Time | None, min_ranks: object) -> RecoveryRequest:
        """Return the checked arguments."""
        return cls(
            _parse_count("step", step, 0),
            parse_timeout("arrival_timeout", arrival_timeout),
            _parse_count("min_ranks", min_ranks, 1),
            {"min_ranks": str(min_ranks)},
        )


def _parse_count(name: str, value: object, least: int) -> int | None:
    """Return an int of at least so many, or None."""
    number = parse_integer(value)
    if value is None or (number is not None and number >= least):
        return number
    line = f"{name} is {value!r}."
    raise SpecError(line, fix=f"{name}={least}, or another int of {least} or more.")


def check_can_recover(mesh: MeshGroups, job: Job) -> None:
    """Raise if a mesh is closed, a view, or of groups that meshkit did not create."""
    mesh.check_open()
    if mesh.view_id:
        raise MeshkitError(
            "this mesh is a view.",
            "A recovery replaces all groups of the job.",
            fix="recover the mesh from which it was created, then create the view again.",
        )
    reason = ""
    if job.store is None or job.counter is None:
        reason = "other code created the default group"
    elif mesh.registry.external_groups:
        reason = "other code created groups of the mesh"
    if reason:
        line = f"{reason}, which meshkit cannot create again."
        raise MeshkitError(line, fix="meshkit.init() and build_mesh(), which create all groups.")
