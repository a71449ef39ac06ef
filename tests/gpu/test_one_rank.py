"""One GPU, a world of 1 on nccl. Run on one H100, but for the test of commit.

Each call is written after torch's documentation: ``init_process_group(device_id=)`` binds the
default group, ``split_group`` needs a bound group, ``fully_shard`` and ``parallelize_module`` take
slices of one root DeviceMesh, ``torch.cuda.graph`` captures nccl collectives after a warm-up on a
side stream.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.bench.calls import time_calls
from meshkit.launch.torch_groups import bound_device, can_split
from meshkit.redistribute import operations

COMPILERS = os.environ.get("CC", ""), "gcc", "clang", "cc"
HEADER = Path(sysconfig.get_path("include")) / "Python.h"


def can_run_triton() -> bool:
    """Return whether triton can build its launchers: with a C compiler and Python's headers."""
    has_compiler = any(shutil.which(name) for name in COMPILERS if name)
    return bool(importlib.util.find_spec("triton")) and has_compiler and HEADER.exists()


@pytest.fixture
def mesh() -> Iterator[meshkit.Mesh]:
    """Yield a mesh of one rank on the GPU, and leave the job."""
    world = meshkit.init(rank=0, world_size=1, seed=7, timeout=60)
    assert str(world.backend) == "nccl"
    assert world.device == torch.device("cuda", 0)
    with meshkit.build_mesh(dp=1, tp=1) as built:
        yield built
    meshkit.shutdown()
    assert not dist.is_initialized()


def test_the_default_group_is_bound_and_groups_of_one_rank_compute(mesh: meshkit.Mesh) -> None:
    assert bound_device() == torch.device("cuda", 0)
    for axis in ("dp", "tp"):
        total = torch.ones(4, device="cuda")
        dist.all_reduce(total, group=mesh.group(axis))
        assert total.tolist() == [1] * 4
    mesh.barrier()
    mesh.verify()


def test_a_group_is_split_from_the_default_group(mesh: meshkit.Mesh) -> None:
    assert can_split(None)
    group = dist.split_group(split_ranks=[[0]])
    assert dist.get_process_group_ranks(group) == [0]
    total = torch.ones(1, device="cuda")
    dist.all_reduce(total, group=group)
    dist.destroy_process_group(group)
    assert int(total) == 1


def test_the_device_mesh_is_on_the_gpu(mesh: meshkit.Mesh) -> None:
    device_mesh = mesh.device_mesh("dp tp")
    assert (device_mesh.device_type, device_mesh.shape) == ("cuda", (1, 1))
    assert device_mesh["tp"].get_group().size() == 1


def test_fsdp_and_tensor_parallelism_of_size_1_train(mesh: meshkit.Mesh) -> None:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    torch.manual_seed(0)
    layers = torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 8)
    model = torch.nn.Sequential(*layers).cuda()
    parameters = [parameter.detach().clone() for parameter in model.parameters()]
    device_mesh = mesh.device_mesh("dp tp")
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(model, device_mesh["tp"], plan)
    fully_shard(model, mesh=device_mesh["dp"])
    data = torch.randn(4, 8, device="cuda")
    loss = model(data).square().mean()
    loss.backward()
    hidden = torch.nn.functional.gelu(data @ parameters[0].T + parameters[1])
    expected = (hidden @ parameters[2].T + parameters[3]).square().mean()
    torch.testing.assert_close(loss, expected)
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_seeds_and_streams_are_those_of_the_gpu(mesh: meshkit.Mesh) -> None:
    first = torch.rand(3, device="cuda")
    torch.cuda.manual_seed_all(7)
    torch.testing.assert_close(torch.rand(3, device="cuda"), first)
    with mesh.rng("dropout"):
        inside = torch.rand(3, device="cuda")
    outside = torch.rand(3, device="cuda")
    assert not torch.equal(inside, outside)


def test_bench_times_with_events(mesh: meshkit.Mesh) -> None:
    total, device = torch.ones(2**20, device="cuda"), torch.device("cuda", 0)
    group = mesh.group("dp")
    seconds = time_calls(lambda: dist.all_reduce(total, group=group) and None, 3, 10, device)
    assert len(seconds) == 10
    assert all(0 < second < 1 for second in seconds)


def test_redistribute_moves_cuda_tensors_with_its_gradient(mesh: meshkit.Mesh) -> None:
    source = torch.randn(4, 6, device="cuda", requires_grad=True)
    moved = mesh.redistribute(source, "a/dp b =tp -> a b/tp =dp")
    moved.square().sum().backward()
    torch.testing.assert_close(moved, source)
    torch.testing.assert_close(source.grad, 2 * source)


def test_commit_waits_for_its_stream_and_not_for_the_device(mesh: meshkit.Mesh) -> None:
    """Print the microseconds of a commit, and of the wait for the device that it made before."""
    matrix, other = torch.ones(4096, 4096, device="cuda"), torch.cuda.Stream()
    micros: dict[str, float] = {}

    def measure(name: str, call: Callable[[], object], count: int) -> None:
        call()
        began = time.perf_counter()
        for _ in range(count):
            call()
        micros[name] = (time.perf_counter() - began) / count * 1e6

    with mesh.guard(timeout=60):
        measure("idle: commit", mesh.commit, 200)
        measure("idle: synchronize", torch.cuda.synchronize, 200)
        with torch.cuda.stream(other):
            for _ in range(200):
                torch.mm(matrix, matrix)
        measure("busy: commit", mesh.commit, 1)
        is_busy = not other.query()
        measure("busy: synchronize", torch.cuda.synchronize, 1)
    print({name: round(value, 1) for name, value in micros.items()})
    assert is_busy  # the other stream went on while the commit returned


def test_a_captured_graph_replays_a_collective(mesh: meshkit.Mesh) -> None:
    out, source = torch.zeros(8, device="cuda"), torch.ones(8, device="cuda")
    group, stream = mesh.group("dp"), torch.cuda.Stream()
    with torch.cuda.stream(stream):  # a warm-up before the capture, as torch's notes ask
        for _ in range(3):
            operations.ALL_GATHER(out, source, group=group)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        operations.ALL_GATHER(out, source, group=group)
        moved = mesh.redistribute(source, "a/dp -> a")
    source.fill_(3)
    graph.replay()
    torch.cuda.synchronize()
    assert out.tolist() == moved.tolist() == [3] * 8


@pytest.mark.skipif(not can_run_triton(), reason="triton, a C compiler or Python.h is missing")
def test_a_compiled_function_moves_tensors(mesh: meshkit.Mesh) -> None:
    @torch.compile(fullgraph=True)
    def step(tensor: torch.Tensor) -> torch.Tensor:
        return mesh.redistribute(tensor, "a/dp -> a").square()

    tensor = torch.arange(4.0, device="cuda")
    torch.testing.assert_close(step(tensor), tensor.square())
