"""Tests of code that uses meshkit: comparisons of meshes, rehearsals, strategies, faults, a marker.

faults.py injects faults, strategies.py draws layouts for hypothesis, and pytest_plugin.py is the
marker. ``compare_meshes`` stands in compare/compare.py, and ``rehearse`` in rehearse/rehearsal.py.

Each name is imported on its first use; the strategies need hypothesis. No other package of meshkit
imports this one, but a command does.
"""

from __future__ import annotations

TYPE_CHECKING = False

if TYPE_CHECKING:
    from ..compare.compare import compare_meshes
    from ..rehearse.rehearsal import rehearse
    from .faults import play
    from .strategies import axes_of, axis_names, batch_plans, coordinates, layouts, ranks, sizes

__all__ = [
    "axes_of",
    "axis_names",
    "batch_plans",
    "compare_meshes",
    "coordinates",
    "layouts",
    "play",
    "ranks",
    "rehearse",
    "sizes",
]


def __getattr__(name: str) -> object:
    """Import a name on its first use."""
    if name == "compare_meshes":
        from ..compare.compare import compare_meshes

        return compare_meshes
    if name == "play":
        from .faults import play

        return play
    if name == "rehearse":
        from ..rehearse.rehearsal import rehearse

        return rehearse
    if name not in __all__:
        raise AttributeError(f"module 'meshkit.testing' has no attribute {name!r}")
    from . import strategies

    return getattr(strategies, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
