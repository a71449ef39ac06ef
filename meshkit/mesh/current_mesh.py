"""The current mesh, for code that receives none: ``with mesh.current():``, ``current_mesh()``.

A thread or task that has entered ``mesh.current()`` sees its own mesh, as a ContextVar gives it.
Any other thread, for example one of autograd, sees the newest mesh that is open in the process::

    with mesh.current():                  thread A: mesh          thread B: mesh
        with view.current():              thread A: view          thread B: view

``torch.compile`` traces no ContextVar. It reads the newest open mesh instead, with a guard. Both
meshes are one as long as only one thread has entered contexts.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import torch

from ..errors import MeshkitError

Mesh = TypeVar("Mesh")

_OWN: ContextVar[Any] = ContextVar("meshkit_current_mesh", default=None)


class _Open:
    """The open contexts of this process, the newest last."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.entries: list[tuple[object, Any, int]] = []  # a token, the mesh, the thread
        self.newest: Any = None
        # the newest one, if all open contexts belong to one thread; compiled code has a guard on it
        self.of_one_thread: Any = None

    def enter(self, mesh: object) -> object:
        """Add a context; return its token."""
        token = object()
        with self.lock:
            self.entries.append((token, mesh, threading.get_ident()))
            self._update()
        return token

    def leave(self, token: object) -> None:
        """Remove a context. Contexts of several threads end in any order."""
        with self.lock:
            self.entries = [entry for entry in self.entries if entry[0] is not token]
            self._update()

    def _update(self) -> None:
        meshes = {id(mesh) for _, mesh, _ in self.entries}
        threads = {thread for _, _, thread in self.entries}
        self.newest = self.entries[-1][1] if self.entries else None
        self.of_one_thread = self.newest if len(threads) == 1 or len(meshes) == 1 else None


_OPEN = _Open()


@contextmanager
def make_current(mesh: Mesh) -> Iterator[Mesh]:
    """Make a mesh the current one in a ``with`` block. See :meth:`meshkit.Mesh.current`."""
    own, token = _OWN.set(mesh), _OPEN.enter(mesh)
    try:
        yield mesh
    finally:
        _OPEN.leave(token)
        _OWN.reset(own)


def find_current_mesh() -> Any:  # noqa: ANN401  # a Mesh, whose file imports this one
    """Return the current mesh. Local. See :func:`meshkit.current_mesh`."""
    if torch.compiler.is_compiling():
        if _OPEN.of_one_thread is None:
            raise _no_mesh()
        return _OPEN.of_one_thread
    mesh = _OWN.get() or _OPEN.newest
    if mesh is None:
        raise _no_mesh()
    return mesh


def _no_mesh() -> MeshkitError:
    if _OPEN.newest is not None:
        line = "several threads have current meshes, which compiled code cannot tell apart."
        return MeshkitError(line, fix="pass the mesh to the compiled function.")
    return MeshkitError("there is no current mesh.", fix="with mesh.current(): around the call.")
