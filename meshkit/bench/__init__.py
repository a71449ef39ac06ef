"""How fast are collectives on a mesh: each axis by itself, as in training, and beside another.

:func:`run_benchmark` joins the job, builds the mesh and measures it. :class:`Sweep` measures a mesh
that exists. :mod:`.results` holds the figures and needs no torch, so torch is imported only when
another name is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .run import Request, run_benchmark
    from .sweep import Sweep, SweepOptions

__all__ = ["Request", "Sweep", "SweepOptions", "run_benchmark"]


def __getattr__(name: str) -> object:
    """Import a public name on its first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import run, sweep

    return getattr(sweep if name.startswith("Sweep") else run, name)
