"""The errors of meshkit: data that renders as one text.

::

    MeshkitError
      SpecError(ValueError)            names, sizes, order, product
        DeviceMeshError(RuntimeError)  the same of ``init_device_mesh``, as torch raises it
      UnknownAxisError(KeyError)       an axis that the mesh does not have, with the closest name
      CoordinateError(IndexError)      a rank or an index outside the grid
      BatchError(ValueError)           a batch that does not divide
      LaunchError(RuntimeError)        launcher variables missing, malformed or contradicting
      DisagreementError(RuntimeError)  ranks that requested different things
      RankTimeoutError(TimeoutError)   ranks that did not arrive in time
        CollectiveError(RuntimeError)  a collective that failed or hung: why, and the ranks
      SpawnError(RuntimeError)         ranks started by ``spawn`` that failed
      NonfiniteError(RuntimeError)     a norm of gradients that is not finite

An error is raised with a summary, evidence and a fix, without the call. The decorator
:func:`meshkit.call.quotes_call` adds the call as its caller wrote it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from typing import TypeVar

VERSION = "0.1.0"  # of the package; equal on all ranks of a job

CALL = "{call}"  # the place of the call in a summary, a line of evidence or a fix

Error = TypeVar("Error", bound="MeshkitError")


def format_error(summary: str, *evidence: str, fix: str) -> str:
    """Return the text of an error: the summary, the evidence, the fix."""
    return "\n  ".join((summary, *evidence, *([f"Fix: {fix}"] if fix else [])))


def text_of(error: BaseException) -> str:
    """Return the text of an error, also of one of the user whose text raises."""
    try:
        return str(error)
    except Exception:
        return "an error without a text"


class MeshkitError(Exception):
    """Base class of all errors that meshkit raises on purpose.

    Args:
        summary: one sentence with the numbers. ``CALL`` in it marks the place of the call;
            without it, the call and a colon stand before the summary.
        *evidence: lines that show why.
        fix: one sentence that says what to change, in the words of the call; "" if unknown.
        **facts: the data behind the text; each becomes an attribute.

    Attributes:
        call: the text of the public call that raised the error; None until it is quoted.

    Example:
        >>> print(MeshkitError("dp is 0.", "Sizes start at 1.", fix="dp=1."))
        dp is 0.
          Sizes start at 1.
          Fix: dp=1.
    """

    begins_with_call = True  # whether the text begins with the call, if it is quoted

    def __init__(self, summary: str = "", *evidence: str, fix: str = "", **facts: object) -> None:
        super().__init__(summary)
        self.summary = summary
        self.evidence = evidence
        self.fix = fix
        self.call: str | None = None
        self.__dict__.update(facts)

    def quote(self: Error, call: object) -> Error:
        """Set the call that the text quotes, and return the error."""
        self.call = str(call)
        return self

    def but(
        self: Error,
        *,
        summary: str | None = None,
        evidence: Iterable[str] | None = None,
        fix: str | None = None,
    ) -> Error:
        """Return the error with other parts, to be raised in its place.

        The traceback, the cause and the data stay. A part that is None stays too.

        Example:
            >>> error = SpecError("dp is 0.", fix="dp=1.")
            >>> print(error.but(evidence=[*error.evidence, "It was read from a file."]))
            dp is 0.
              It was read from a file.
              Fix: dp=1.
        """
        error = copy(self).with_traceback(self.__traceback__)
        if summary is not None:
            error.summary, error.args = summary, (summary,)
        error.evidence = self.evidence if evidence is None else tuple(evidence)
        error.fix = self.fix if fix is None else fix
        error.__cause__ = self.__cause__  # so that the text of this error is not printed too
        return error

    @property
    def headline(self) -> str:
        """The first line of the text: the call and the summary."""
        if self.call is None or CALL in self.summary or not self.begins_with_call:
            return self._fill(self.summary)
        return f"{self.call}: {self.summary}"

    @property
    def fix_text(self) -> str:
        """The fix with the call in its place."""
        return self._fill(self.fix or "")

    @property
    def evidence_text(self) -> list[str]:
        """The lines of evidence with the call in its place."""
        return [*map(self._fill, self.evidence)]

    def _fill(self, text: object) -> str:  # an error of the user may hold anything
        return str(text).replace(CALL, self.call or "this call")

    @property
    def text(self) -> str:
        """The whole text: the call, the evidence and the fix."""
        return format_error(self.headline, *self.evidence_text, fix=self.fix_text)

    def __str__(self) -> str:
        return self.text

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.summary, *self.evidence), self.__dict__


class SpecError(MeshkitError, ValueError):
    """A request for a mesh with wrong names, sizes, order or product."""

    sizes: Mapping[str, object] | None = None  # axis name to requested size, if it could be read
    world_size: int | None = None  # the number of ranks, if known
    num_ranks: int | None = None  # the number that the sizes need, if the world has another one
    below: int | None = (
        None  # if tokens or nodes do not divide, the nearest smaller number, or None
    )
    above: int | None = None  # the nearest larger one


class DeviceMeshError(SpecError, RuntimeError):
    """A request of ``init_device_mesh`` that is invalid. torch raises a RuntimeError there."""


class UnknownAxisError(MeshkitError, KeyError):
    """A question about an axis that the mesh does not have."""

    axis: str = ""  # the requested name
    axes: tuple[str, ...] = ()  # the names that exist
    suggestion: str | None = None  # the closest of them, or None


class CoordinateError(MeshkitError, IndexError):
    """A rank, index or coordinate outside the grid."""

    axis: str | None = None  # the axis of the index, or None for a rank
    index: object = None  # the index or rank given
    size: int | None = None  # the number of valid indices


class BatchError(MeshkitError, ValueError):
    """A batch that does not divide exactly."""

    global_batch: int | None = None  # the requested global batch in samples, or None
    below: int | None = None  # the nearest smaller global batch that works, or None
    above: int | None = None  # the nearest larger one
    micro_batches: tuple[int, ...] = ()  # those that divide ``global_batch`` over this dp


class LaunchError(MeshkitError, RuntimeError):
    """A launcher description of this process that is missing, malformed or contradictory."""

    variables: Mapping[str, str | None] = {}  # environment variables; None if one is not set


class DisagreementError(MeshkitError, RuntimeError):
    """Ranks that requested different meshes; no process group was created."""

    begins_with_call = False  # the calls differ, and the text is the same on every rank
    requests: Mapping[int, str] = {}  # rank to its request
    for_all: bool = False  # whether all ranks of a guard raise it, though one rank has found it


class RankTimeoutError(MeshkitError, TimeoutError):
    """Ranks that did not arrive in time."""

    missing_ranks: tuple[int, ...] = ()  # in ascending order; empty if they are not known


class CollectiveError(RankTimeoutError, RuntimeError):
    """A collective that failed or did not complete; torch's own error is the cause."""

    behind: tuple[int, ...] = ()  # the ranks that have started fewer collectives than their peers
    # why ranks wait: "dead", "stopped", "left", "mismatch", "order", "message", "behind", "busy",
    # "wedge", "late" or "unknown"; empty if no rank waits
    kind: str = ""
    # the ranks at the cause: others wait for them, and they wait for none, or for each other; of
    # kind "unknown" those that cannot be excluded
    root: tuple[int, ...] = ()


class SpawnError(MeshkitError, RuntimeError):
    """At least one rank started by ``meshkit.spawn`` failed; all ranks have been ended."""

    errors: Mapping[int, BaseException] = {}  # rank to its exception, or a description of its end
    tracebacks: Mapping[int, str] = {}  # rank to the traceback text of the ranks that raised


class NonfiniteError(MeshkitError, RuntimeError):
    """Gradients whose norm is infinite or not a number."""
