"""Break off a rank that waits in a collective though it has read the report of a failure.

The ranks that fail close their connections, so that the others get an error at once. gloo does not
notice each such end, and a busy rank may fail to find its connections. The watching thread of a
rank that waits then closes those of its own rank::

    rank 3   is killed
    rank 2   all_reduce raises ... report ... closes its connections
    rank 1   waits in all_reduce ............ reads the report ..... closes its own: torch raises
"""

from __future__ import annotations

import time

from ..groups.break_off import break_off
from .roll_call import GuardContext

GRACE = 0.4  # seconds after the report in which torch raises on most ranks


class ReadReport:
    """The report that a watching thread reads inside one guard, if there is one."""

    def __init__(self, context: GuardContext) -> None:
        self.context, self.earlier = context, {*context.state.reports}
        self.read_at: float | None = None

    def break_off_waiting_rank(self) -> None:
        """Break off the groups if a report is known for longer than the grace. Local.

        Call it again and again while the rank waits in a collective: a store that is busy may not
        name the connections in time.

        Cost: none without a report.
        """
        reports, now = self.context.state.reports, time.monotonic()
        if self.read_at is None:
            is_known = any(reports[number] for number in reports.keys() - self.earlier)
            self.read_at = now if is_known else None
        elif now - self.read_at > GRACE:
            self.read_at = now
            break_off(self.context.groups.values())
