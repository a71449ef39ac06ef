"""Solve ``global_batch = micro_batch x accumulation_steps x dp`` for the size that is not given.

The solution is exact unless the caller asks for rounding. An uneven solution holds the global batch
exactly too, but its micro batches do not divide by dp.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..errors import BatchError
from ..text import article, format_sizes, plural
from ..validate import divisors, parse_integer

BATCH_FIELDS = ("dp", "global_batch", "micro_batch", "accumulation_steps")
PLURAL = {"micro_batch": "Micro batches", "accumulation_steps": "Accumulation steps"}
ROUNDINGS = ("down", "up")
MAX_DIVISORS = 8  # divisors named in an error

Sizes = Mapping[str, int]


def solve_batch(
    given: Mapping[str, object], rounding: object = None, uneven: object = False
) -> dict[str, int]:
    """Return all four sizes, and ``asked``, the requested global batch, if it was rounded."""
    sizes = {name: _parse_size(name, given) for name in given}
    if not isinstance(uneven, bool):
        raise BatchError(f"uneven is {uneven!r}.", fix="uneven=True, or uneven=False.")
    if rounding is not None and rounding not in ROUNDINGS:
        ways = ", or ".join(f"round={way!r}" for way in ROUNDINGS)
        raise BatchError(f"round is {rounding!r}.", fix=f"{ways}.")
    missing = [name for name in BATCH_FIELDS if name not in sizes]
    if len(missing) > 1:
        raise _missing_sizes_error(sizes, missing)
    if uneven and missing in ([], ["accumulation_steps"]):
        return _solve_uneven(sizes, rounding)
    return _solve_even(sizes, missing, rounding)


def _solve_even(sizes: Sizes, missing: list[str], rounding: object) -> dict[str, int]:
    """Return sizes for which every data coordinate runs the same number of micro batches."""
    unit = math.prod(size for name, size in sizes.items() if name != "global_batch")
    requested = sizes.get("global_batch", unit)
    solution = {**sizes, "global_batch": requested}
    if requested % unit or (not missing and requested != unit):
        solution["global_batch"] = _round(sizes, unit, rounding, not missing)
        solution["asked"] = requested
    for name in set(missing) - {"global_batch"}:
        solution[name] = solution["global_batch"] // unit
    return solution


def _solve_uneven(sizes: Sizes, rounding: object) -> dict[str, int]:
    """Return sizes for which data coordinates may run one micro batch more than others."""
    requested, micro = sizes["global_batch"], sizes["micro_batch"]
    solution = dict(sizes)
    if requested % micro:
        divided = {"global_batch": requested, "micro_batch": micro}
        solution["global_batch"] = _round(divided, micro, rounding, exact=False)
        solution["asked"] = requested
    num_micro_batches = solution["global_batch"] // micro
    steps = -(-num_micro_batches // sizes["dp"])
    if sizes.get("accumulation_steps", steps) != steps:
        raise BatchError(
            f"accumulation_steps is {sizes['accumulation_steps']}.",
            f"{num_micro_batches} micro batches over dp {sizes['dp']} are {steps} a rank at most.",
            fix=f"accumulation_steps={steps}, or leave it out.",
            global_batch=requested,
        )
    return {**solution, "accumulation_steps": steps}


def _parse_size(name: str, given: Mapping[str, object]) -> int:
    number = _parse_number(value := given[name])
    if number is None or number < 1:
        smallest = _batch_unit(given) if name == "global_batch" else 1
        kind = f", {article(type(value).__name__)}" if isinstance(value, str) else ""
        raise BatchError(
            f"{name} is {value!r}{kind}.",
            "Batches and steps are whole numbers of 1 or more.",
            fix=_fix_of_text(name, value) or f"{name}={smallest}, or more.",
        )
    return number


def _parse_number(value: object) -> int | None:
    """Return an integer as a plain int, also one that a config holds as a float, such as 8.0."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return parse_integer(value)


def _fix_of_text(name: str, value: object) -> str:
    """Return the fix of a number that a config holds as text, such as 1e3; "" for other values."""
    try:
        number = float(value) if isinstance(value, str) else math.nan
    except ValueError:
        return ""
    return f"{name}={int(number)}." if number >= 1 and number.is_integer() else ""


def _batch_unit(given: Mapping[str, object]) -> int:
    """Return the product of the valid sizes other than the global batch."""
    numbers = [parse_integer(value) for name, value in given.items() if name != "global_batch"]
    return math.prod(number for number in numbers if number is not None and number > 0)


def _missing_sizes_error(sizes: Sizes, missing: list[str]) -> BatchError:
    """Return the error of too few sizes, with values for the missing ones."""
    names = BATCH_FIELDS[1:] if "dp" in sizes else BATCH_FIELDS
    rule = "Any two of the three give the third." if "dp" in sizes else "Any three give the last."
    free = "global_batch" if "global_batch" in missing else missing[0]
    changes = dict.fromkeys((name for name in missing if name != free), 1)
    if "global_batch" in sizes:
        known = math.prod(size for name, size in sizes.items() if name != "global_batch")
        changes["global_batch"] = -(-sizes["global_batch"] // known) * known
    given = len(names) - len(missing)
    return BatchError(
        f"{given} of {', '.join(names)} {'is' if given == 1 else 'are'} given.",
        rule,
        fix=f"{format_sizes(changes, ', ')}.",
        global_batch=sizes.get("global_batch"),
    )


def _round(sizes: Sizes, unit: int, rounding: object, exact: bool) -> int:
    """Return the nearest global batch in the requested direction."""
    total = sizes["global_batch"]
    low, high = (unit, unit) if exact else (total // unit * unit, (total // unit + 1) * unit)
    below, above = low if 0 < low < total else None, high if high > total else None
    nearest = {"down": below, "up": above}.get(str(rounding))
    if nearest is None:
        raise _indivisible_error(sizes, unit, (below, above), exact)
    return nearest


def _indivisible_error(
    sizes: Sizes, unit: int, around: tuple[int | None, int | None], exact: bool
) -> BatchError:
    """Return the error of a batch that does not divide, with the nearest ones that do."""
    total, nearest = sizes["global_batch"], [n for n in around if n is not None]
    product = " x ".join(f"{name} {size}" for name, size in sizes.items() if name != "global_batch")
    # the size that is free to change divides the global batch as the micro batch would
    free = "accumulation_steps" if "micro_batch" not in sizes else "micro_batch"
    fixed = next((name for name in ("dp", "accumulation_steps") if name in sizes), "")
    factor = sizes.get(fixed, 1)
    fitting = divisors(total // factor) if total % factor == 0 else ()
    quotient = f"{total} over {fixed} {factor}" if fixed else f"{total}"
    shown = _format_divisors(fitting, sizes.get(free, 1))
    ways = [f"global_batch={n}" for n in nearest]
    if fitting:
        ways.append("leave out one of the three" if exact else f"{free} one of {shown}")
    below, above = around
    return BatchError(
        f"{total} is not {'' if exact else 'a multiple of '}{product} = {unit}.",
        f"Nearest global {plural('batch', len(nearest))}: {' and '.join(str(n) for n in nearest)}.",
        f"{PLURAL[free]} that divide {quotient}: {shown}.",
        fix=f"{', or '.join(ways)}.",
        global_batch=total,
        below=below,
        above=above,
        micro_batches=fitting,
    )


def _format_divisors(fitting: tuple[int, ...], wanted: int) -> str:
    """Return the divisors nearest to the given size, in ascending order."""
    nearest = sorted(sorted(fitting, key=lambda n: abs(n - wanted))[:MAX_DIVISORS])
    return ", ".join(str(n) for n in nearest) or "none"
