"""What tests of code that uses meshkit need: hypothesis strategies.

Needs hypothesis: ``pip install 'meshkit[testing]'``. Nothing else in meshkit imports this room.
"""

from __future__ import annotations

from .strategies import axes_of, axis_names, batch_plans, coordinates, layouts, ranks, sizes

__all__ = ["axes_of", "axis_names", "batch_plans", "coordinates", "layouts", "ranks", "sizes"]
