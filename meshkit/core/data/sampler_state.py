"""Where a pass over data stands, as plain values that any mesh and any plan can read on from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..errors import BatchError, CoordinateError
from ..text import article, count_noun
from ..validate import parse_integer
from .epoch import Epoch

State = dict[str, int | bool | str]

VERSION = 1  # of the fields


def state(epoch: Epoch, steps: int) -> State:
    """What says where an epoch stands after so many of its steps.

    ``consumed`` counts samples of the one global order, so it means the same on every mesh.
    """
    return {
        "version": VERSION,
        "length": epoch.length,
        "shuffle": epoch.shuffle,
        "seed": epoch.seed,
        "epoch": epoch.number,
        "consumed": epoch.consumed(steps),
    }


def resume_epoch(epoch: Epoch, said: object) -> Epoch:
    """The rest of the epoch that a state stands in, over the data and by the plan of ``epoch``.

    Raises:
        BatchError: for a state that cannot be read, or of other data.
    """
    found = read(said, (*state(epoch, 0),))
    number, consumed = position(found)
    kept = ("length", "shuffle", *(["seed"] if epoch.shuffle else []))
    here = state(epoch, 0)
    odd = [name for name in kept if found[name] != here[name]]
    if odd:
        lines = (f"{name} is {found[name]!r} in the state, {here[name]!r} here." for name in odd)
        fix = f"a sampler with the {' and '.join(odd)} of the state."
        raise BatchError("the state is of another order of samples.", *lines, fix=fix)
    if consumed > epoch.length:
        raise _unreadable(f"consumed is {consumed}, of {count_noun(epoch.length, 'sample')}")
    return replace(epoch, number=number, begin=consumed)


def read(said: object, names: tuple[str, ...]) -> Mapping[str, object]:
    """The fields of a state.

    Raises:
        BatchError: where one is missing, or the state is of another version.
    """
    if not isinstance(said, Mapping):
        raise _unreadable(f"it is {article(type(said).__name__)}")
    missing = [name for name in names if name not in said]
    if missing:
        raise _unreadable(f"it has no {', '.join(missing)}")
    if said["version"] != VERSION:
        raise _unreadable(f"its version is {said['version']!r}, not {VERSION}")
    return said


def position(found: Mapping[str, object]) -> tuple[int, int]:
    """The epoch and the samples consumed.

    Raises:
        BatchError: where one is no int of 0 or more.
    """
    number, consumed = parse_integer(found["epoch"]), parse_integer(found["consumed"])
    if number is None or number < 0 or consumed is None or consumed < 0:
        fault = f"epoch is {found['epoch']!r}, consumed is {found['consumed']!r}"
        raise _unreadable(fault)
    return number, consumed


def checked_count(what: str, value: object, most: int | None = None) -> int:
    """A number of steps, or of an epoch, as a plain int.

    Raises:
        CoordinateError: where it is no int from 0 to ``most``; None is no limit.
    """
    number = parse_integer(value)
    if number is None or number < 0 or (most is not None and number > most):
        known = "0 or more" if most is None else f"from 0 to {most}"
        raise CoordinateError(
            f"{what} is {value!r}.", fix=f"{what} as an int, {known}.", index=value
        )
    return number


def _unreadable(fault: str) -> BatchError:
    return BatchError(
        "this is no state to read on from.", f"{fault}.", fix="what state_dict() gave."
    )
