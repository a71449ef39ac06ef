"""Types of the numpy arrays that the pure part takes and returns."""

from __future__ import annotations

from typing import Any

import numpy as np

Ints = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Seconds = Floats
