"""Cases of errors that core/draw raises."""

from __future__ import annotations

import numpy as np

from meshkit.core.draw.svg import draw_svg
from tests.messages.snapshot import unique

CASES = unique(
    (
        "a picture with too many ranks",
        lambda: draw_svg(("pp", "dp", "tp"), np.zeros((4, 12_500, 8), dtype=np.int64)),
    ),
    ("a picture with too few nodes", lambda: draw_svg(("dp",), np.arange(4), np.array([0, 0, 1]))),
)
