"""The position of a pass over data, as plain values from which any mesh and plan can resume."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..errors import BatchError, CoordinateError
from ..text import article, count_noun
from ..validate import parse_integer
from .epoch import Epoch

State = dict[str, int | bool | str]

VERSION = 1  # of the fields


def epoch_state(epoch: Epoch, steps: int) -> State:
    """Return the position in an epoch after some of its steps.

    ``consumed`` counts samples of the one global order, so it is valid on every mesh.
    """
    return {
        "version": VERSION,
        "length": epoch.length,
        "shuffle": epoch.shuffle,
        "seed": epoch.seed,
        "epoch": epoch.number,
        "consumed": epoch.consumed(steps),
    }


def resume_epoch(epoch: Epoch, state: object) -> Epoch:
    """Return the rest of the epoch of a state, with the data and the plan of ``epoch``."""
    expected = epoch_state(epoch, 0)
    fields = read_state(state, (*expected,))
    number, consumed = read_position(fields)
    fixed = ("length", "shuffle", *(["seed"] if epoch.shuffle else []))
    differing = [name for name in fixed if fields[name] != expected[name]]
    if differing:
        raise _other_order_error(fields, expected, differing)
    if consumed > epoch.length:
        raise _invalid_state(f"consumed is {consumed}, of {count_noun(epoch.length, 'sample')}")
    return replace(epoch, number=number, begin=consumed)


def _other_order_error(
    fields: Mapping[str, object], expected: Mapping[str, object], differing: Sequence[str]
) -> BatchError:
    """Return the error of a state whose samples come in another order."""
    lines = (
        f"{name} is {fields[name]!r} in the state, {expected[name]!r} in this sampler."
        for name in differing
    )
    settings = [f"{name}={fields[name]!r}" for name in differing if name != "length"]
    ways = [f"the dataset of {fields['length']} samples"] * ("length" in differing)
    ways += [f"mesh.sampler(dataset, plan, {', '.join(settings)})"] * bool(settings)
    summary = "the state is of another order of samples."
    return BatchError(summary, *lines, fix=f"{', with '.join(ways)}.")


def read_state(state: object, names: tuple[str, ...]) -> Mapping[str, object]:
    """Return the state, which has the named fields and the current version."""
    if not isinstance(state, Mapping):
        raise _invalid_state(f"It is {article(type(state).__name__)}, not a dict")
    missing = [name for name in names if name not in state]
    if missing:
        raise _invalid_state(f"It has no {', '.join(missing)}")
    if state["version"] != VERSION:
        raise _invalid_state(f"Its version is {state['version']!r}, not {VERSION}")
    return state


def read_position(state: Mapping[str, object]) -> tuple[int, int]:
    """Return the epoch of a state and the samples consumed in it."""
    number, consumed = parse_integer(state["epoch"]), parse_integer(state["consumed"])
    if number is None or number < 0 or consumed is None or consumed < 0:
        fault = f"epoch is {state['epoch']!r}, consumed is {state['consumed']!r}"
        raise _invalid_state(fault)
    return number, consumed


def parse_count(name: str, value: object, most: int | None = None) -> int:
    """Return the number of a step or an epoch, or a number of steps, as a plain int."""
    number = parse_integer(value)
    if number is None or number < 0 or (most is not None and number > most):
        known = "0 or more" if most is None else f"from 0 to {most}"
        raise CoordinateError(
            f"{name} is {value!r}.", fix=f"{name} as an int, {known}.", index=value
        )
    return number


def _invalid_state(fault: str) -> BatchError:
    return BatchError("the state is invalid.", f"{fault}.", fix="the result of state_dict().")
