"""Registration of the mesh with the forkserver, so that spawned ranks need not import it."""

from __future__ import annotations

from ..launch.spawn.start_method import preload


def preload_mesh() -> None:
    """Let spawned ranks start with ``build_mesh`` imported. Local; imports nothing here."""
    preload(f"{__package__}.build_mesh")
