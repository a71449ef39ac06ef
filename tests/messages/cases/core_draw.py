"""Cases of errors that core/draw raises."""

from __future__ import annotations

import numpy as np

from meshkit.core.draw.page import draw_page
from tests.messages.snapshot import unique

CASES = unique(
    (
        "a page with too many ranks",
        lambda: draw_page("", {"dp": "#000"}, np.arange(400_000)),
    ),
)
