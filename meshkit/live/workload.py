"""What is this rank's to do: its samples, its tokens, its random numbers."""

from __future__ import annotations

from .grouped import Grouped


class Workload(Grouped):
    """A rank with its groups, and its exact share of the data."""
