"""How fast are collectives on a mesh: each axis by itself, as in training, and beside another.

:func:`run_benchmark` joins the job, builds the mesh and measures it. :class:`Sweep` measures a mesh
that exists. :mod:`.results` holds the figures and needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .run import Request, run_benchmark
    from .sweep import Sweep, SweepOptions

__all__ = ["Request", "Sweep", "SweepOptions", "run_benchmark"]

_HOME = {"Request": "run", "run_benchmark": "run", "Sweep": "sweep", "SweepOptions": "sweep"}


def __getattr__(name: str) -> object:
    """Import a public name on its first use, since results are read without torch."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f".{_HOME[name]}", __name__), name)
    return value
