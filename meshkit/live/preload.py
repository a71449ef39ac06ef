"""Registration of the mesh with the forkserver, so that spawned ranks need not import it."""

from __future__ import annotations

from ..launch.spawn import preload


def preload_mesh() -> None:
    """Let spawned ranks start with the modules of a mesh imported. Local; imports nothing here."""
    modules = (
        "build_mesh",
        "data.data_index",
        "move.mesh_moves",
        "external",
        "hosts",
    )
    preload(*[f"{__package__}.{module}" for module in modules], "meshkit.core.topology")
