"""Order of the axes: the standard one, or the caller's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..errors import Change, SpecError
from ..text import article, format_sizes
from .axis_names import STANDARD, check_names, closest_axis, parse_axes
from .sizes import check_one_inferred


def order_axes(
    sizes: Mapping[str, int], order: str | Iterable[str] | None, *, can_add_dp: bool = True
) -> dict[str, int]:
    """Return the sizes with dp, the outermost axis first.

    Args:
        sizes: as :func:`check_sizes` returns them.
        order: each axis name once, the outermost first; None is the standard order.
        can_add_dp: whether ``dp`` may be missing from ``sizes`` although ``order`` names it.

    Returns:
        Axis name to size. ``dp`` without a size is -1, unless ``order`` leaves it out too.

    Raises:
        SpecError: if an axis has no standard position and ``order`` is not given.
        SpecError: if ``order`` and the sizes do not name the same axes.

    Example:
        >>> order_axes({"tp": 2, "pp": 4}, None), order_axes({"tp": 2}, "tp dp")
        ({'pp': 4, 'dp': -1, 'tp': 2}, {'tp': 2, 'dp': -1})
    """
    if order is None:
        _check_standard_axes(sizes)
        names: tuple[str, ...] = tuple(n for n in STANDARD if n in sizes or n == "dp")
    else:
        names = _parse_order(order)
        _check_order(sizes, names, can_add_dp=can_add_dp)
    ordered = {name: sizes.get(name, -1) for name in names}
    check_one_inferred(ordered)
    return ordered


def view_sizes(sizes: Mapping[str, int], order: str | Iterable[str] | None) -> dict[str, int]:
    """Return the sizes of a view, the outermost axis first: as written, or in ``order``.

    Args:
        sizes: as :func:`check_sizes` returns them.
        order: as in :func:`order_axes`.

    Raises:
        SpecError: if standard axes are not in the standard order and ``order`` is not given: two
            views of one job would then nest differently, which is rarely intended.
    """
    if order is not None:
        return order_axes(sizes, order, can_add_dp=False)
    written = [name for name in sizes if name in STANDARD]
    standard = sorted(written, key=STANDARD.index)
    if written != standard:
        remaining = iter(standard)
        names = [next(remaining) if name in STANDARD else name for name in sizes]
        reordered = format_sizes({name: sizes[name] for name in names}, ", ")
        raise SpecError(
            f"{' '.join(written)} is not the standard order, {' '.join(standard)}.",
            "A view keeps the order in which its axes are written, the outermost first.",
            fix=(f"{reordered}; or ", Change(order=" ".join(sizes)), ", if it is intended."),
            sizes=dict(sizes),
        )
    return dict(sizes)


def _parse_order(order: object) -> tuple[str, ...]:
    if isinstance(order, Iterable):
        return parse_axes(order)
    fix = ("for example ", Change(order="dp tp"), ".")
    raise SpecError(f"order is {order!r}, {article(type(order).__name__)}.", fix=fix)


def _check_standard_axes(sizes: Mapping[str, int]) -> None:
    """Check that each axis has a position in the standard order.

    Raises:
        SpecError: for the first one that has none, with an order.
    """
    for name in sizes:
        if name not in STANDARD:
            suggestion = closest_axis(name, STANDARD)
            dp = () if -1 in sizes.values() else ("dp",)
            order = " ".join(dict.fromkeys((*dp, *sizes)))
            hint = f"did you mean {suggestion}? Or " if suggestion else ""
            raise SpecError(
                f"the axis {name} has no standard position.",
                f"The standard order is {' '.join(STANDARD)}, the outermost axis first.",
                fix=(f"{hint}give its position: ", Change(order=order), "."),
                sizes=dict(sizes),
                axis=name,
                axes=STANDARD,
                suggestion=suggestion,
            )


def _check_order(sizes: Mapping[str, int], names: tuple[str, ...], *, can_add_dp: bool) -> None:
    """Check that the order names each axis once.

    Raises:
        SpecError: with all differences and an order that fits.
    """
    if names:
        check_names(names)
    unsized = [n for n in names if n not in sizes and n != "dp"]
    missing = [n for n in sizes if n not in names]
    repeated = sorted({n for n in names if names.count(n) > 1})
    if names and not (unsized or missing or repeated):
        return
    evidence = [] if names else ["order names no axis."]
    evidence += [f"{n} is in order but has no size." for n in unsized]
    evidence += [f"{n} has a size but is not in order." for n in missing]
    evidence += [f"{n} appears twice in order." for n in repeated]
    complete = "dp" in sizes or -1 in sizes.values() or not can_add_dp
    dp = [] if complete else ["dp"]  # with dp, any number of ranks fits
    valid = " ".join(dict.fromkeys(dp + [n for n in names if n not in unsized] + missing))
    fix = (Change(order=valid), ".")
    raise SpecError("order does not match the sizes.", *evidence, fix=fix, sizes=dict(sizes))
