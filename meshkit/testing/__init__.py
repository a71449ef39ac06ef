"""Tests of code that uses meshkit: hypothesis strategies, faults, and tests on several ranks.

The strategies need hypothesis, and are imported on their first use. No other package of meshkit
imports this one.
"""

from __future__ import annotations

TYPE_CHECKING = False

if TYPE_CHECKING:
    from .strategies import axes_of, axis_names, batch_plans, coordinates, layouts, ranks, sizes

__all__ = ["axes_of", "axis_names", "batch_plans", "coordinates", "layouts", "ranks", "sizes"]


def __getattr__(name: str) -> object:
    """Import the strategies on their first use."""
    if name not in __all__:
        raise AttributeError(f"module 'meshkit.testing' has no attribute {name!r}")
    from . import strategies

    return getattr(strategies, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
