"""World: who a process is in its job, with the source of every field."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .table import contradicting

if TYPE_CHECKING:
    import torch

# Field name to the variable that tells a child process of it.
EXPORTED = {
    "rank": "RANK",
    "world_size": "WORLD_SIZE",
    "local_rank": "LOCAL_RANK",
    "local_world_size": "LOCAL_WORLD_SIZE",
    "master_addr": "MASTER_ADDR",
    "master_port": "MASTER_PORT",
}


@dataclass(frozen=True)
class World:
    """Who this process is.

    Attributes:
        rank: the global rank, 0 to world_size - 1.
        world_size: how many ranks the job has.
        local_rank: the index of this rank on its node.
        local_world_size: how many ranks its node has; None where the launcher does not say.
        node_rank: the index of its node; None where the launcher does not say.
        num_nodes: how many nodes there are; None where the launcher does not say.
        master_addr: the host where ranks meet, or None.
        master_port: the port there, or None.
        launcher: the row of the table that answered: ``"torchrun"``, ``"slurm"``, ``"single"``...
        init_method: where ranks meet, as a URL, where that is not an address: ``"file://..."``.
        device: a ``torch.device``; None until ``init``.
        backend: what collectives run on, ``"gloo"`` or ``"nccl"``; None until ``init``.
        sources: field name to where its value came from: a variable, ``"argument"``, ...
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int | None
    node_rank: int | None
    num_nodes: int | None
    master_addr: str | None
    master_port: int | None
    launcher: str
    init_method: str | None = None
    device: torch.device | None = None
    backend: str | None = None
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def size_evidence(self) -> str:
        """Where the world size came from, as errors print it.

        Example:
            >>> from meshkit import detect
            >>> detect({"RANK": "0", "WORLD_SIZE": "6"}).size_evidence
            'WORLD_SIZE = 6 (hand-written)'
        """
        source = self.sources["world_size"]
        if self.launcher == "single" and source != "argument":
            return f"there is 1 process and {source}"
        return f"{source} = {self.world_size} ({self.launcher})"

    def export(self, environ: MutableMapping[str, str] | None = None) -> dict[str, str]:
        """Set the variables that a child process expects, so that it detects this same place.

        RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, those whose
        field is not None. What would contradict them is removed: a stale LOCAL_WORLD_SIZE, and by
        what another launcher says that this is another rank. Local.

        Args:
            environ: where to set them; None means ``os.environ``.

        Returns:
            What was set, by name.

        Example:
            >>> from meshkit import detect
            >>> detect({}, rank=1, world_size=2).export({})["LOCAL_RANK"]
            '1'
        """
        values = {name: getattr(self, field) for field, name in EXPORTED.items()}
        found = {name: str(value) for name, value in values.items() if value is not None}
        target = os.environ if environ is None else environ
        for name in contradicting(target, self.rank, self.world_size) | {"LOCAL_WORLD_SIZE"}:
            target.pop(name, None)
        target.update(found)
        return found
