"""The current mesh, in threads and in compiled code."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

import meshkit
from tests.faults import error_of


@pytest.fixture(scope="module")
def meshes() -> Iterator[tuple[meshkit.Mesh, meshkit.Mesh]]:
    meshkit.init(rank=0, world_size=1)
    with meshkit.build_mesh(dp=1, tp=1) as mesh, mesh.view(a=1) as view:
        yield mesh, view
    meshkit.shutdown()


def in_thread(found: list[object]) -> threading.Thread:
    thread = threading.Thread(target=lambda: found.append(meshkit.current_mesh()))
    thread.start()
    thread.join()
    return thread


def test_contexts_nest_and_end(meshes: tuple[meshkit.Mesh, meshkit.Mesh]) -> None:
    mesh, view = meshes
    with mesh.current() as entered:
        assert entered is mesh is meshkit.current_mesh()
        with view.current():
            assert meshkit.current_mesh() is view
        assert meshkit.current_mesh() is mesh
    error = error_of(meshkit.current_mesh)
    assert error is not None
    assert error[0] == "MeshkitError"


def test_a_plain_thread_has_the_newest_open_mesh(
    meshes: tuple[meshkit.Mesh, meshkit.Mesh],
) -> None:
    mesh, view = meshes
    found: list[object] = []
    with mesh.current(), view.current():
        in_thread(found)
    assert found == [view]


def test_a_thread_with_a_context_keeps_its_own(meshes: tuple[meshkit.Mesh, meshkit.Mesh]) -> None:
    mesh, view = meshes
    opened, done, found = threading.Event(), threading.Event(), list[object]()

    def work() -> None:
        with view.current():
            opened.set()
            done.wait(10)
            found.append(meshkit.current_mesh())

    with mesh.current():
        thread = threading.Thread(target=work)
        thread.start()
        assert opened.wait(10)
        assert meshkit.current_mesh() is mesh  # though the other thread's is newer
        done.set()
        thread.join(10)
    assert found == [view]


def test_backward_has_the_current_mesh(meshes: tuple[meshkit.Mesh, meshkit.Mesh]) -> None:
    found: list[object] = []
    with meshes[0].current():
        x = torch.ones(2, requires_grad=True)
        x.register_hook(lambda grad: found.append(meshkit.current_mesh()))
        x.sum().backward()
    assert found == [meshes[0]]


def test_fullgraph_code_is_compiled_again_for_another_mesh(
    meshes: tuple[meshkit.Mesh, meshkit.Mesh],
) -> None:
    @torch.compile(backend="eager", fullgraph=True)
    def add_axes(x: torch.Tensor) -> torch.Tensor:
        return x + (10 if "tp" in meshkit.current_mesh() else 20)

    results = []
    for mesh in (*meshes, meshes[0]):
        with mesh.current():
            results.append(add_axes(torch.zeros(())).item())
    assert results == [10, 20, 10]
