"""Which layouts, batches and faults should the tests of code that uses meshkit try?

The hypothesis strategies, such as :func:`layouts`, :func:`sizes` and :func:`batch_plans`, are in
strategies.py, scripts of faults in faults.py. The package needs hypothesis:
``pip install 'meshkit[testing]'``. No other package of meshkit imports it.
"""

from __future__ import annotations

from .strategies import axes_of, axis_names, batch_plans, coordinates, layouts, ranks, sizes

__all__ = ["axes_of", "axis_names", "batch_plans", "coordinates", "layouts", "ranks", "sizes"]
