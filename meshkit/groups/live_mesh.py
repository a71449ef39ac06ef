"""The mesh as the wings see it, which stand below the class.

A function of a wing whose first parameter is called ``self`` is a method of :class:`meshkit.Mesh`:
``mesh/mesh.py`` names it in the class. Its text, its checks and its work stand in one file. Members
of these protocols are fields or properties of Mesh: pyright takes no ``cached_property`` for one,
and an editor would then show no signature.
"""

from __future__ import annotations

from typing import Protocol

import torch

from .open_mesh import MeshProposal
from .registry import MeshGroups


class LiveMesh(Protocol):
    """A mesh, with the state that its methods share."""

    _proposal: MeshProposal  # with the job, the arrival timeout and the options
    _groups: MeshGroups  # those of this rank, with the plan and the registry of the mesh

    @property
    def device(self) -> torch.device:
        """The device of this process, for the tensors of its collectives."""
