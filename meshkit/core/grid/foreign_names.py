"""Check that no name of an axis is an option of another call, or a name of another library."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..aliases import (
    ARGUMENTS,
    BATCH_OPTIONS,
    INIT_OPTIONS,
    known_name,
    option_owner,
    standard_axis,
)
from ..call import changes
from ..errors import SpecError
from .axis_names import RESERVED, STANDARD
from .roles import axis_role


def check_options(sizes: Mapping[str, object], names: Iterable[str]) -> None:
    """Check that none of the names is an option of another call, or another name of an axis."""
    renamed = _rename(names)
    moved = [name for name in sizes if name in INIT_OPTIONS or name in BATCH_OPTIONS]
    if not renamed and not moved:
        return
    lines = [f"{name} is called {new} here." for name, new in renamed.items()]
    new_names = {**{name: name for name in moved}, **renamed}
    ways = []
    for name, new in new_names.items():
        value = sizes.get(name)
        if new in STANDARD and (value is None or isinstance(value, bool)):  # a switch, no size
            ways.append(f"leave out {name}")
            continue
        argument = changes(**{new: guess_size(value) if new in STANDARD else value})
        if new in INIT_OPTIONS or new in BATCH_OPTIONS:
            lines.append(f"{new} is no axis; it is an option of {option_owner(new)}.")
            argument = f"{option_owner(new)}({argument})"
        ways.append(f"{argument} in place of {name}")
    raise SpecError(*lines, fix=f"{', and '.join(ways)}.", sizes=dict(sizes))


def check_view_names(sizes: Mapping[str, object]) -> None:
    """Check that no keyword of a view is another name of a standard axis, such as ``dp_size``."""
    unknown = [name for name in sizes if axis_role(name) == "unknown"]
    check_options(sizes, [name for name in unknown if standard_axis(name)])


def _rename(names: Iterable[str]) -> dict[str, str]:
    """Return the names that stand for an axis or an option, with that axis or option.

    Names of other libraries stay, unless the whole mesh can be written with standard axes.
    """
    unknown = [n for n in names if not (n in STANDARD or n in INIT_OPTIONS or n in BATCH_OPTIONS)]
    renamed = {name: _other_name(name) for name in unknown}
    is_complete = all(renamed.values())
    kept = {name for name in unknown if axis_role(name) != "unknown" and not is_complete}
    return {name: new for name, new in renamed.items() if new and name not in kept}


def _other_name(name: str) -> str | None:
    """Return the axis or the option that a name stands for, or None."""
    if name not in ARGUMENTS and (name in RESERVED or axis_role(name) != "unknown"):
        return standard_axis(name)
    return standard_axis(name) or known_name(name, RESERVED)


def guess_size(size: object) -> int:
    """Return 4 for ``"4"`` and 4.0, -1 for ``"auto"``, and 1, which switches an axis off."""
    try:
        number = 0 if isinstance(size, bool) else int(float(size))  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = -1 if size == "auto" else 0
    return number if number == -1 else max(number, 1)
