"""Name the numpy array types that the pure part returns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Seconds = NDArray[np.float64]
