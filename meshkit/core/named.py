"""Axes that an argument names: ``data="dp ep"``, ``vary=("dp", "tp")``, ``axes="sp"``."""

from __future__ import annotations

from .axes import check_known, listed
from .call import Call
from .errors import SpecError, UnknownAxisError, told

DEFAULT = ("dp",)


def named(call: Call, argument: str, value: object, axes: tuple[str, ...]) -> tuple[str, ...]:
    """The axes in the order they are named; none for an empty value.

    Args:
        call: the call to quote.
        argument: what it is called there.
        value: ``"dp sp"`` or ``("dp", "sp")``.
        axes: those there are.

    Raises:
        SpecError: where the value is neither, or names an axis twice.
        UnknownAxisError: for an axis that is not there.

    Example:
        >>> named(Call("mesh.batch"), "data", "dp ep", ("dp", "ep", "tp"))
        ('dp', 'ep')
    """
    if not isinstance(value, str | tuple | list):
        fix = f"{argument}={axes[:1]!r}, or other axes of {' '.join(axes)}."
        raise SpecError(told(f"{call}: {argument} is {value!r}.", fix=fix))
    names = listed(value)
    if names == DEFAULT and "dp" not in axes:
        fix = f"{argument}={' '.join(axes)!r}, or those of these axes that do."
        text = told(f"{call}: there is no axis dp that divides the samples.", fix=fix)
        raise UnknownAxisError(text, axis="dp", axes=axes)
    check_known(call, names, axes)
    return names
