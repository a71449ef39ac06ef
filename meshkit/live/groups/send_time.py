"""The time that a send or a receive waits along a pipeline.

gloo keeps the timeout under which a group connected, and sends and receives wait that long. A later
timeout of the group does not change it. ``wait`` of one send or receive takes a time of its own.
"""

from __future__ import annotations

from datetime import timedelta

from ...core.group_plan import GroupPlan
from ...launch.log import log_line
from ...launch.store.deadline import format_timeout
from ...launch.torch_internals import connects_at_creation, timeout_of
from .mesh_groups import Groups


def log_send_time(plan: GroupPlan, groups: Groups, backend: str, connect: timedelta) -> None:
    """Log how long a send waits along a pipeline, if that is less than the group's timeout."""
    group = groups.by_key.get(plan.group_key(("pp",)))
    if group not in groups.created or group.size() == 1 or not connects_at_creation(backend):
        return
    timeout = timeout_of(group)
    if timeout is not None and timeout > connect:
        log_line(
            "send and recv along pp wait %s, a fifth of arrival_timeout, not %s; "
            "irecv(...).wait(timedelta(...)) waits longer",
            *(format_timeout(connect), format_timeout(timeout)),
        )
