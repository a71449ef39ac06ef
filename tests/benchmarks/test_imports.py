"""Imports and the command line, in processes of their own: the work, not its time."""

from __future__ import annotations

import json
import math

from benchmarks import imports


def test_the_command_line_is_one_that_works() -> None:
    plan = json.loads(imports.run_python("-m", "meshkit", *imports.PLAN.split(), "--json"))
    assert math.prod(plan["sizes"].values()) == imports.RANKS
