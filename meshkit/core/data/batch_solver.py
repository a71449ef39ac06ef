"""One of four follows from the others: global_batch = micro_batch x accumulation_steps x dp.

Exactly, or rounded as was asked for, or uneven: with as many micro batches as the global batch has,
which do not divide by dp.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..errors import BatchError, Change
from ..validate import divisors, parse_integer

BATCH_FIELDS = ("dp", "global_batch", "micro_batch", "accumulation_steps")
PLURAL = {"micro_batch": "Micro batches", "accumulation_steps": "Accumulation steps"}
ROUNDINGS = ("down", "up")
SHOWN = 8  # divisors named in an error

Sizes = Mapping[str, int]


def solve_batch(
    asked: Mapping[str, object], rounding: object = None, uneven: object = False
) -> dict[str, int]:
    """All four sizes, and ``asked``, the global batch before it was rounded, if it was.

    Args:
        asked: those of the four that were given; they are checked here.
        rounding: ``"down"`` or ``"up"``: which neighbour to take for a global batch that does not
            divide; None refuses it.
        uneven: whether micro batches may be dealt unevenly to the data coordinates.

    Raises:
        BatchError: as :meth:`BatchPlan.solve`.
    """
    sizes = {name: _checked(name, asked) for name in asked}
    if not isinstance(uneven, bool):
        raise BatchError(f"uneven is {uneven!r}.", fix="uneven=True, or False.")
    if rounding is not None and rounding not in ROUNDINGS:
        ways = " or ".join(f"round={way!r}" for way in ROUNDINGS)
        raise BatchError(f"round is {rounding!r}.", fix=f"{ways}.")
    missing = [name for name in BATCH_FIELDS if name not in sizes]
    if len(missing) > 1:
        raise _too_few(sizes, missing)
    if uneven and missing in ([], ["accumulation_steps"]):
        return _dealt(sizes, rounding)
    return _divided(sizes, missing, rounding)


def _divided(sizes: Sizes, missing: list[str], rounding: object) -> dict[str, int]:
    """Every data coordinate runs as many micro batches as every other."""
    unit = math.prod(size for name, size in sizes.items() if name != "global_batch")
    total = sizes.get("global_batch", unit)
    found = {**sizes, "global_batch": total}
    if total % unit or (not missing and total != unit):
        found["global_batch"] = _rounded(sizes, unit, rounding, not missing)
        found["asked"] = total
    for name in set(missing) - {"global_batch"}:
        found[name] = found["global_batch"] // unit
    return found


def _dealt(sizes: Sizes, rounding: object) -> dict[str, int]:
    """Whole micro batches, of which some data coordinates run one more than others."""
    total, micro = sizes["global_batch"], sizes["micro_batch"]
    found = dict(sizes)
    if total % micro:
        alone = {"global_batch": total, "micro_batch": micro}
        found["global_batch"] = _rounded(alone, micro, rounding, exact=False)
        found["asked"] = total
    steps = -(-(found["global_batch"] // micro) // sizes["dp"])
    if sizes.get("accumulation_steps", steps) != steps:
        raise BatchError(
            f"accumulation_steps is {sizes['accumulation_steps']}.",
            f"{found['global_batch'] // micro} micro batches over dp {sizes['dp']} are {steps} "
            "at the most.",
            fix=f"accumulation_steps={steps}, or leave it out.",
            global_batch=total,
        )
    return {**found, "accumulation_steps": steps}


def _checked(name: str, asked: Mapping[str, object]) -> int:
    number = parse_integer(value := asked[name])
    if number is None or number < 1:
        raise BatchError(
            f"{name} is {value!r}.",
            "Batches and steps are whole numbers of 1 or more.",
            fix=f"{name}={_unit(asked) if name == 'global_batch' else 1}, or more.",
        )
    return number


def _unit(asked: Mapping[str, object]) -> int:
    """What a global batch must be a multiple of, as far as the rest can be read."""
    numbers = [parse_integer(value) for name, value in asked.items() if name != "global_batch"]
    return math.prod(number for number in numbers if number is not None and number > 0)


def _too_few(sizes: Sizes, missing: list[str]) -> BatchError:
    """Too few were given, or none: name those that fit."""
    names = BATCH_FIELDS[1:] if "dp" in sizes else BATCH_FIELDS
    enough = "Any two of the three give the third." if "dp" in sizes else "Any three give the last."
    free = "global_batch" if "global_batch" in missing else missing[0]
    changes = dict.fromkeys((name for name in missing if name != free), 1)
    if "global_batch" in sizes:
        known = math.prod(size for name, size in sizes.items() if name != "global_batch")
        changes["global_batch"] = -(-sizes["global_batch"] // known) * known
    return BatchError(
        f"{len(names) - len(missing)} of {', '.join(names)} given.",
        enough,
        fix=(Change(**changes), "."),
        global_batch=sizes.get("global_batch"),
    )


def _rounded(sizes: Sizes, unit: int, rounding: object, exact: bool) -> int:
    """The neighbour of a global batch that does not divide which was asked for.

    Raises:
        BatchError: where none was, or there is none below; with the nearest, and what divides.
    """
    total = sizes["global_batch"]
    low, high = (unit, unit) if exact else (total // unit * unit, (total // unit + 1) * unit)
    below, above = low if 0 < low < total else None, high if high > total else None
    chosen = {"down": below, "up": above}.get(str(rounding))
    if chosen is None:
        raise _indivisible(sizes, unit, (below, above), exact)
    return chosen


def _indivisible(
    sizes: Sizes, unit: int, around: tuple[int | None, int | None], exact: bool
) -> BatchError:
    """The batch that does not divide, with the nearest that do, and what divides it."""
    total, near = sizes["global_batch"], [n for n in around if n is not None]
    product = " x ".join(f"{name} {size}" for name, size in sizes.items() if name != "global_batch")
    # what is free to change divides just as the micro batch would
    free = "accumulation_steps" if "micro_batch" not in sizes else "micro_batch"
    over = next((name for name in ("dp", "accumulation_steps") if name in sizes), "")
    held = sizes.get(over, 1)
    fitting = divisors(total // held) if total % held == 0 else ()
    among = f"{total} over {over} {held}" if over else f"{total}"
    shown = _nearby(fitting, sizes.get(free, 1))
    ways = [f"global_batch={n}" for n in near]
    if fitting:
        ways.append("leave out one of the three" if exact else f"{free} one of {shown}")
    below, above = around
    return BatchError(
        f"{total} is not {'' if exact else 'a multiple of '}{product} = {unit}.",
        f"Nearest global batches: {' and '.join(str(n) for n in near)}.",
        f"{PLURAL[free]} that divide {among}: {shown}.",
        fix=f"{', or '.join(ways)}.",
        global_batch=total,
        below=below,
        above=above,
        micro_batches=fitting,
    )


def _nearby(fitting: tuple[int, ...], wanted: int) -> str:
    """The divisors nearest to what was asked for, in ascending order."""
    near = sorted(sorted(fitting, key=lambda n: abs(n - wanted))[:SHOWN])
    return ", ".join(str(n) for n in near) or "none"
