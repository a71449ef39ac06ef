"""The errors of meshkit: data that renders as one text.

::

    MeshkitError
      SpecError(ValueError)            names, sizes, order, product
      UnknownAxisError(KeyError)       an axis that the mesh does not have, with the closest name
      CoordinateError(IndexError)      a rank or an index outside the grid
      BatchError(ValueError)           a batch that does not divide
      LaunchError(RuntimeError)        launcher variables missing, malformed or contradicting
      DisagreementError(RuntimeError)  ranks that requested different things
      RankTimeoutError(TimeoutError)   ranks that did not arrive in time
        CollectiveError(RuntimeError)  a collective that failed or hung, with the ranks behind
      SpawnError(RuntimeError)         ranks started by ``spawn`` that failed

An error is raised with a summary, evidence and a fix, without the call. The decorator
:func:`meshkit.core.call.public` adds the call as its caller wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

CALL = "{call}"  # the place of the call in a summary, a line of evidence or a fix

Error = TypeVar("Error", bound="MeshkitError")

# A fix that ends with a command line, which can be copied
COMMAND = re.compile(
    r"(?:.*(?:: |for example |, or ))?(?:meshkit|torchrun|srun|mpirun|pip|python) [^,;]+\."
)


class Quotable(Protocol):
    """A call or a command line that an error can quote."""

    def with_args(self, **changes: object) -> object:
        """Return the same call with some arguments changed, or (None) left out."""


class Change:
    """A part of a fix: the quoted call with some arguments changed, or (None) left out.

    Example:
        >>> fix = (Change(dp=None), ", which gives dp=3.")
        >>> print(SpecError("needs 8 ranks.", fix=fix).fix_text)
        without dp, which gives dp=3.
    """

    def __init__(self, **arguments: object) -> None:
        self.arguments = arguments

    def render(self, call: Quotable | None) -> str:
        """Return the changed call, or words for the change if no call is known."""
        if call is not None:
            return str(call.with_args(**self.arguments))
        added = ", ".join(f"{k}={v!r}" for k, v in self.arguments.items() if v is not None)
        dropped = ", ".join(k for k, v in self.arguments.items() if v is None)
        return ", ".join([*[added] * bool(added), *[f"without {dropped}"] * bool(dropped)])


Fix = str | Change | tuple["str | Change", ...]


def join_fixes(ways: Sequence[Fix]) -> tuple[str | Change, ...]:
    """Return one fix out of alternatives, with the word or between them."""
    parts: list[str | Change] = []
    for way in ways:
        parts += [", or "] * bool(parts)
        parts += way if isinstance(way, tuple) else [way]
    return tuple(parts)


def format_error(summary: str, *evidence: str, fix: str) -> str:
    """Return the text of an error: the summary, the evidence, the fix."""
    return "\n  ".join((summary, *evidence, *([f"Fix: {fix}"] if fix else [])))


class MeshkitError(Exception):
    """Base class of all errors that meshkit raises on purpose.

    Args:
        summary: one sentence with the numbers. ``CALL`` in it marks the place of the call;
            without it, the call and a colon stand before the summary.
        *evidence: lines that show why.
        fix: something to type, as text and :class:`Change` objects.
        **facts: the data behind the text; each becomes an attribute.

    Attributes:
        call: the public call that raised the error; None until it is quoted.
        raised_at: file and line of the ``raise`` in meshkit, which the traceback leaves out.

    Example:
        >>> error = MeshkitError("dp is 0.", "Sizes start at 1.", fix="dp=1.")
        >>> error.headline, error.fix_text
        ('dp is 0.', 'dp=1.')
        >>> print(error)
        dp is 0.
          Sizes start at 1.
          Fix: dp=1.
    """

    raised_at: tuple[str, int] | None = None
    begins_with_call = True  # whether the text begins with the call, if it is quoted

    def __init__(self, summary: str = "", *evidence: str, fix: Fix = "", **facts: object) -> None:
        super().__init__(summary)
        self.summary = summary
        self.evidence = evidence
        self.fix = fix
        self.call: Quotable | None = None
        self.__dict__.update(facts)

    def quote(self: Error, call: Quotable) -> Error:
        """Set the call that the text quotes, and return the error."""
        self.call = call
        return self

    @property
    def headline(self) -> str:
        """The first line of the text: the call and the summary."""
        if self.call is None or CALL in self.summary or not self.begins_with_call:
            return self._fill(self.summary)
        return f"{self.call}: {self.summary}"

    @property
    def fix_text(self) -> str:
        """The fix as text, without the word Fix. A command line at its end has no period."""
        parts = self.fix if isinstance(self.fix, tuple) else (self.fix,)
        rendered = (p.render(self.call) if isinstance(p, Change) else p for p in parts)
        fix = self._fill("".join(rendered))
        return fix.removesuffix(".") if COMMAND.fullmatch(fix) else fix

    def _fill(self, text: str) -> str:
        return text.replace(CALL, "this call" if self.call is None else str(self.call))

    @property
    def text(self) -> str:
        """The whole text: the call, the evidence and the fix."""
        return format_error(self.headline, *map(self._fill, self.evidence), fix=self.fix_text)

    def __str__(self) -> str:
        return self.text

    def __reduce__(self) -> tuple[object, ...]:
        state = {
            **self.__dict__,
            "fix": self.fix_text,
            "call": self.call and Quoted(str(self.call)),
        }
        return type(self), (self.summary, *self.evidence), state


class Quoted(str):
    """The text of a call in an error that was pickled, which can no longer be changed."""

    __slots__ = ()

    def with_args(self, **changes: object) -> Quoted:
        """Return the text itself."""
        return self


class SpecError(MeshkitError, ValueError):
    """A request for a mesh with wrong names, sizes, order or product.

    Attributes:
        sizes: axis name to requested size, if that could be read.
        world_size: the number of ranks, if known.
        num_ranks: the number of ranks that the sizes need, if the world has another one.
        below: for a sequence that does not divide, the nearest shorter length that does, or None.
        above: the nearest longer one.

    Example:
        >>> import meshkit
        >>> try:
        ...     meshkit.factor_world(6, dp=4, sp=2)
        ... except meshkit.SpecError as error:
        ...     error.num_ranks, error.world_size
        (8, 6)
    """

    sizes: Mapping[str, object] | None = None
    world_size: int | None = None
    num_ranks: int | None = None
    below: int | None = None
    above: int | None = None


class UnknownAxisError(MeshkitError, KeyError):
    """A question about an axis that the mesh does not have.

    Attributes:
        axis: the requested name.
        axes: the names that exist.
        suggestion: the closest of them, or None.

    Example:
        >>> import meshkit
        >>> try:
        ...     meshkit.Layout(dp=4, tp=2).groups("pt")
        ... except meshkit.UnknownAxisError as error:
        ...     error.axis, error.axes, error.suggestion
        ('pt', ('dp', 'tp'), 'tp')
    """

    axis: str = ""
    axes: tuple[str, ...] = ()
    suggestion: str | None = None


class CoordinateError(MeshkitError, IndexError):
    """A rank, index or coordinate outside the grid.

    Attributes:
        axis: the axis of the index, or None for a rank.
        index: the index or rank given.
        size: the number of valid indices.

    Example:
        >>> import meshkit
        >>> try:
        ...     meshkit.Layout(dp=4, tp=2).coordinate(8)
        ... except meshkit.CoordinateError as error:
        ...     error.index, error.size
        (8, 8)
    """

    axis: str | None = None
    index: object = None
    size: int | None = None


class BatchError(MeshkitError, ValueError):
    """A batch that does not divide exactly.

    Attributes:
        global_batch: the requested global batch in samples, or None.
        below: the nearest smaller global batch that works, or None.
        above: the nearest larger one.
        micro_batches: the micro batches that divide ``global_batch`` over this dp.

    Example:
        >>> import meshkit
        >>> try:
        ...     meshkit.BatchPlan.solve(dp=4, global_batch=100, micro_batch=3)
        ... except meshkit.BatchError as error:
        ...     error.below, error.above, error.micro_batches
        (96, 108, (1, 5, 25))
    """

    global_batch: int | None = None
    below: int | None = None
    above: int | None = None
    micro_batches: tuple[int, ...] = ()


class LaunchError(MeshkitError, RuntimeError):
    """A launcher description of this process that is missing, malformed or contradictory.

    Attributes:
        variables: the environment variables in question and their values; None if not set.

    Example:
        >>> import meshkit
        >>> try:
        ...     meshkit.detect({"RANK": "3"})
        ... except meshkit.LaunchError as error:
        ...     sorted(error.variables)
        ['WORLD_SIZE']
    """

    variables: Mapping[str, str | None] = {}


class DisagreementError(MeshkitError, RuntimeError):
    """Ranks that requested different meshes; no process group was created.

    Attributes:
        requests: rank to its request.

    Example:
        >>> error = DisagreementError("ranks disagree.", requests={0: "dp=4", 1: "dp=2"})
        >>> error.requests[1]
        'dp=2'
    """

    begins_with_call = False  # the calls differ, and the text is the same on every rank
    requests: Mapping[int, str] = {}

    @property
    def headline(self) -> str:
        """The summary without the call, which differs between the ranks."""
        return self._fill(self.summary)


class RankTimeoutError(MeshkitError, TimeoutError):
    """Ranks that did not arrive in time.

    Attributes:
        missing_ranks: the missing ranks in ascending order; empty if they are not known.

    Example:
        >>> error = RankTimeoutError("rank 3 did not arrive.", missing_ranks=(3,))
        >>> isinstance(error, TimeoutError), error.missing_ranks
        (True, (3,))
    """

    missing_ranks: tuple[int, ...] = ()


class CollectiveError(RankTimeoutError, RuntimeError):
    """A collective that failed or did not complete; torch's own error is the cause.

    Attributes:
        missing_ranks: the ranks that did not answer, in ascending order.
        behind: the ranks that have started fewer collectives than their peers.

    Example:
        >>> error = CollectiveError("all_reduce failed.", behind=(2,))
        >>> isinstance(error, RankTimeoutError), error.behind
        (True, (2,))
    """

    behind: tuple[int, ...] = ()


class SpawnError(MeshkitError, RuntimeError):
    """At least one rank started by ``meshkit.spawn`` failed; all ranks have been ended.

    Attributes:
        errors: rank to the exception that it raised, or to a description of its end.
        tracebacks: rank to the traceback text of the ranks that raised.

    Example:
        >>> import operator
        >>> import meshkit
        >>> try:
        ...     meshkit.spawn(operator.truediv, 2, (1, 0))
        ... except meshkit.SpawnError as error:
        ...     error.errors[0]
        ZeroDivisionError('division by zero')
    """

    errors: Mapping[int, BaseException] = {}
    tracebacks: Mapping[int, str] = {}
