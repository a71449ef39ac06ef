"""World: the rank of a process in its job, with the source of every field."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .table import contradicting_variables
from .variables import COMPLETED

if TYPE_CHECKING:
    import torch

MAX_WORLD_SIZE = 2**21  # ranks; messages and memory grow with the ranks that are missing
# Field name to the variable that passes it to a child process.
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
    """The rank of this process and its job.

    Attributes:
        rank: the global rank, 0 to world_size - 1.
        world_size: the number of ranks of the job.
        local_rank: the index of this rank on its node.
        local_world_size: the number of ranks on its node; None if the launcher does not set it.
        node_rank: the index of its node; None if the launcher does not set it.
        num_nodes: the number of nodes; None if the launcher does not set it.
        master_addr: the host of the rendezvous store, or None.
        master_port: the port of the store, or None.
        launcher: the matching row of the table: ``"torchrun"``, ``"slurm"``, ``"single"``...
        init_method: the rendezvous URL, if it is not an address: ``"file://..."``.
        device: a ``torch.device``; None until ``init``.
        backend: the backend of collectives, ``"gloo"`` or ``"nccl"``; None until ``init``.
        sources: field name to the source of its value: a variable, ``"argument"``, ...
        size_evidence: the source of the world size as errors print it, for example
            ``"WORLD_SIZE = 6 (torchrun)"``.

    Example:
        >>> from meshkit import detect
        >>> world = detect({"RANK": "3", "WORLD_SIZE": "8"})
        >>> world.rank, world.world_size, world.launcher, world.sources["rank"]
        (3, 8, 'hand-written', 'RANK')
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

    size_evidence: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        source = self.sources.get("world_size", "world_size")
        evidence = f"{source} = {self.world_size} ({self.launcher})"
        if self.launcher == "single" and source != "argument":
            evidence = f"there is 1 process and {source}"
        object.__setattr__(self, "size_evidence", evidence)

    def export(self, environ: MutableMapping[str, str] | None = None) -> dict[str, str]:
        """Set the variables from which a child process detects this same world. Local.

        Sets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT if their
        field is not None. Removes variables that contradict them: a stale LOCAL_WORLD_SIZE, and
        the variables of a launcher that give another rank.

        Args:
            environ: the mapping to change; None means ``os.environ``.

        Returns:
            The variables that were set.

        Example:
            >>> from meshkit import detect
            >>> world = detect({}, rank=1, world_size=2, master_addr="node1", master_port=29500)
            >>> world.export({})["LOCAL_RANK"], world.export({})["MASTER_ADDR"]
            ('1', 'node1')
        """
        values = {name: getattr(self, field) for field, name in EXPORTED.items()}
        exported = {name: str(value) for name, value in values.items() if value is not None}
        target = os.environ if environ is None else environ
        for name in contradicting_variables(target, self.rank, self.world_size) | {
            "LOCAL_WORLD_SIZE",
            COMPLETED,
        }:
            target.pop(name, None)
        target.update(exported)
        return exported
