"""What meshkit refuses, and how it says so.

::

    MeshkitError
      SpecError(ValueError)            names, sizes, order, product
      UnknownAxisError(KeyError)       an axis the mesh does not have, with the close match
      CoordinateError(IndexError)      a rank or an index outside the grid
      BatchError(ValueError)           a batch that does not divide
      LaunchError(RuntimeError)        launcher variables missing, malformed or contradicting
      DisagreementError(RuntimeError)  ranks asked for different meshes
      RankTimeoutError(TimeoutError)   ranks that did not arrive in time
        CollectiveError(RuntimeError)  a collective that failed or hung, and who is behind
      SpawnError(RuntimeError)         ranks started by ``spawn`` that failed

Every message has one shape: the call with its numbers, the evidence, then ``Fix:`` and something
that can be typed. The same facts are attributes of the exception, and survive pickling.
"""

from __future__ import annotations

from collections.abc import Mapping


def format_error(call: str, *evidence: str, fix: str) -> str:
    """The text of an error: line one, the evidence, the fix.

    Example:
        >>> print(format_error("f(dp=0): the size of dp is 0.", "Sizes start at 1.", fix="f(dp=1)."))
        f(dp=0): the size of dp is 0.
          Sizes start at 1.
          Fix: f(dp=1).
    """
    return "\n  ".join((call, *evidence, f"Fix: {fix}"))


class MeshkitError(Exception):
    """The root of everything meshkit raises on purpose.

    Args:
        message: the whole text, as it will be printed.
        **facts: the data behind the text; each becomes an attribute.
    """

    def __init__(self, message: str, **facts: object) -> None:
        super().__init__(message)
        self.__dict__.update(facts)

    def __str__(self) -> str:  # KeyError would print the repr, quotes and all
        return str(self.args[0])


class SpecError(MeshkitError, ValueError):
    """The mesh asked for cannot be: its names, sizes, order or product are wrong.

    Attributes:
        sizes: axis name to size, as asked for, where that could be read.
        world_size: the number of ranks there are, where it was known.
        below: of a sequence that does not divide, the nearest shorter length that does, or None.
        above: the nearest longer one.
        axis: an axis that has no standard position and is not in ``order``, or "".
        axes: the standard axes, if ``axis`` is set.
        suggestion: the standard axis most similar to ``axis``, or None.
    """

    sizes: Mapping[str, object] | None = None
    world_size: int | None = None
    below: int | None = None
    above: int | None = None
    axis: str = ""
    axes: tuple[str, ...] = ()
    suggestion: str | None = None


class UnknownAxisError(MeshkitError, KeyError):
    """A question about an axis that the mesh does not have.

    Attributes:
        axis: the name asked for.
        axes: the names that exist.
        suggestion: the closest of them, or None.
    """

    axis: str = ""
    axes: tuple[str, ...] = ()
    suggestion: str | None = None


class CoordinateError(MeshkitError, IndexError):
    """A rank, index or coordinate outside the grid.

    Attributes:
        axis: the axis of the index, or None where a rank is outside.
        index: the index or rank given.
        size: how many there are.
    """

    axis: str | None = None
    index: object = None
    size: int | None = None


class BatchError(MeshkitError, ValueError):
    """A batch that does not divide exactly.

    Attributes:
        global_batch: the global batch asked for, in samples, or None.
        below: the nearest smaller global batch that works, or None where there is none.
        above: the nearest larger one.
        micro_batches: the micro batches that divide ``global_batch`` over this dp.
    """

    global_batch: int | None = None
    below: int | None = None
    above: int | None = None
    micro_batches: tuple[int, ...] = ()


class LaunchError(MeshkitError, RuntimeError):
    """What the launcher says about this process is missing, malformed or contradicts itself.

    Attributes:
        variables: the variables in question and their values; None where one is not set.
    """

    variables: Mapping[str, str | None] = {}


class DisagreementError(MeshkitError, RuntimeError):
    """Ranks asked for different meshes; no process group was created.

    Attributes:
        requests: rank to what it asked for.
    """

    requests: Mapping[int, str] = {}


class RankTimeoutError(MeshkitError, TimeoutError):
    """Ranks did not arrive in time.

    Attributes:
        missing_ranks: the ranks that did not, in ascending order; empty where they are not known.
    """

    missing_ranks: tuple[int, ...] = ()


class CollectiveError(RankTimeoutError, RuntimeError):
    """A collective failed or did not come through; torch's own error is the cause.

    Attributes:
        missing_ranks: the ranks that did not answer, in ascending order.
        behind: the ranks that have begun fewer collectives than their peers.
    """

    behind: tuple[int, ...] = ()


class SpawnError(MeshkitError, RuntimeError):
    """At least one rank started by ``meshkit.spawn`` failed; all have been ended.

    Attributes:
        errors: rank to the exception it raised, or to what became of it.
        tracebacks: rank to the traceback text of the ranks that raised.
    """

    errors: Mapping[int, BaseException] = {}
    tracebacks: Mapping[int, str] = {}
