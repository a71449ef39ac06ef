"""Which layouts, batches and faults should the tests of code that uses meshkit try?

The hypothesis strategies, such as :func:`layouts`, :func:`sizes` and :func:`batch_plans`, are in
strategies.py. They are imported on their first use, and need hypothesis. Scripts of faults are in
faults.py. The marker ``@pytest.mark.ranks(4)`` of pytest_plugin.py runs a test on several ranks. No
other package of meshkit imports this one.
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
