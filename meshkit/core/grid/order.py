"""The order in which axes nest: the standard one, or the caller's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..errors import Change, SpecError
from ..text import article, format_sizes
from .axis_names import STANDARD, check_names, check_one_inferred, closest_axis, parse_axes


def order_axes(
    sizes: Mapping[str, int], order: str | Iterable[str] | None, *, can_add_dp: bool = True
) -> dict[str, int]:
    """The sizes from the outermost axis to the innermost, dp among them.

    Args:
        sizes: as :func:`check_sizes` returns them.
        order: axis names from the outside in, every one once; None is the standard order.
            Where ``dp`` has no size it is added as -1, unless ``order`` leaves it out too.

    Raises:
        SpecError: if an axis has no standard position and ``order`` is not given.
        SpecError: where ``order`` and the sizes do not name the same axes.
    """
    if order is None:
        _check_standard_order(sizes)
        names: tuple[str, ...] = tuple(n for n in STANDARD if n in sizes or n == "dp")
    else:
        names = _names(order)
        _check_order(sizes, names, can_add_dp=can_add_dp)
    nested = {name: sizes.get(name, -1) for name in names}
    check_one_inferred(nested)
    return nested


def view_sizes(sizes: Mapping[str, int], order: str | Iterable[str] | None) -> dict[str, int]:
    """The sizes of a view from the outside in: as written, or as ``order`` says.

    Args:
        sizes: as :func:`check_sizes` returns them.
        order: as in :func:`order_axes`.

    Raises:
        SpecError: without ``order``, for standard axes that do not stand in the standard order: two
            views of one job would then nest differently, which is rarely meant.
    """
    if order is not None:
        return order_axes(sizes, order, can_add_dp=False)
    standard = [name for name in sizes if name in STANDARD]
    right = sorted(standard, key=STANDARD.index)
    if standard != right:
        turn = iter(right)
        nested = {n: sizes[n] for n in (next(turn) if n in STANDARD else n for n in sizes)}
        raise SpecError(
            f"{' '.join(standard)} is not the standard order, {' '.join(right)}.",
            "A view keeps the order in which its axes are written, from the outside in.",
            fix=(f"{format_sizes(nested, ', ')}; or ", Change(order=" ".join(sizes)), ", if it is meant."),
            sizes=dict(sizes),
        )
    return dict(sizes)


def _names(order: object) -> tuple[str, ...]:
    if isinstance(order, Iterable):
        return parse_axes(order)
    kind = type(order).__name__
    fix = (Change(order="dp tp"), ", say.")
    raise SpecError(f"order is {order!r}, {article(kind)}.", fix=fix)


def _check_standard_order(sizes: Mapping[str, int]) -> None:
    for name in sizes:
        if name not in STANDARD:
            suggestion = closest_axis(name, STANDARD)
            dp = () if -1 in sizes.values() else ("dp",)
            order = " ".join(dict.fromkeys((*dp, *sizes)))
            hint = f"did you mean {suggestion}? Or " if suggestion else ""
            raise SpecError(
                f"the axis {name} has no standard place.",
                f"The standard axes nest {' '.join(STANDARD)}, from the outside in.",
                fix=(f"{hint}say where it goes: ", Change(order=order), "."),
                sizes=dict(sizes),
                axis=name,
                axes=STANDARD,
                suggestion=suggestion,
            )


def _check_order(
    sizes: Mapping[str, int], names: tuple[str, ...], *, can_add_dp: bool
) -> None:
    if names:
        check_names(names)
    unsized = [n for n in names if n not in sizes and n != "dp"]
    unplaced = [n for n in sizes if n not in names]
    doubled = sorted({n for n in names if names.count(n) > 1})
    if names and not (unsized or unplaced or doubled):
        return
    evidence = [] if names else ["order names no axis."]
    evidence += [f"{n} is in order but has no size." for n in unsized]
    evidence += [f"{n} has a size but is not in order." for n in unplaced]
    evidence += [f"{n} stands twice in order." for n in doubled]
    fits = "dp" in sizes or -1 in sizes.values() or not can_add_dp
    dp = [] if fits else ["dp"]  # with it, any number of ranks fits
    right = " ".join(dict.fromkeys(dp + [n for n in names if n not in unsized] + unplaced))
    fix = (Change(order=right), ".")
    raise SpecError("order and sizes differ.", *evidence, fix=fix, sizes=dict(sizes))
