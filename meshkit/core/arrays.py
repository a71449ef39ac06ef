"""Types of the numpy arrays that the pure part takes and returns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Seconds = NDArray[np.float64]
