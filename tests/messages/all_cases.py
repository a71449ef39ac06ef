"""The cases of all packages: the name of an error, and a callable that raises it."""

from __future__ import annotations

from tests.messages import snapshot
from tests.messages.cases import (
    bench,
    core_cost,
    core_data,
    core_draw,
    core_grid,
    core_recovery,
    core_redistribute,
    core_topology,
    launch,
    live,
)

CASES = snapshot.merge(
    module.CASES
    for module in (
        *(core_grid, core_data, core_topology, core_cost, core_draw, core_redistribute),
        core_recovery,
        *(bench, launch, live),
    )
)
