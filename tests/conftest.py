"""Every test: hypothesis judges nothing by the clock, as two workers share the machine; and spawned
ranks begin with what torch imports late."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from meshkit.launch.processes import PRELOADED

settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")

PRELOADED.append("tests.preloaded")  # the last one
