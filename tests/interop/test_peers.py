"""Unmodified builders of a DeviceMesh, as installed, on torch's groups and on meshkit's.

Each function is taken from the source of its package, without the imports of its file: those need
what the function does not. Accelerate is imported. Only the name ``init_device_mesh`` is replaced.
The same function runs with torch's on the same ranks, so every group is compared with what its
project expects. ``python -m tests.interop.test_peers`` writes the table of
docs/evidence/drop-in.md.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import enum
import functools
import logging
import os
import sys
import threading
import time
import types
import typing
from collections.abc import Callable, Iterator
from datetime import timedelta
from importlib import metadata
from statistics import median
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.device_mesh as torch_mesh

import meshkit
from tests.faults import error_of
from tests.interop.bare_packages import PEERS
from tests.one_step import equals_one_process
from tests.pages import ROOT
from tests.pool import Pool, start_pool
from tests.promises import BUSY

parallelism_config = pytest.importorskip("accelerate.parallelism_config")

PAGE = ROOT / "docs" / "evidence" / "drop-in.md"
BEGIN, END = "<!-- drop-in -->", "<!-- /drop-in -->"
WITHIN = 2.0  # seconds until a wrong size is named
Init = Callable[..., Any]
Groups = dict[str, dist.ProcessGroup]


class Built(typing.NamedTuple):
    """The groups that a builder has made, by name, and the dims of FSDP2 and of TP."""

    groups: Groups
    data: torch_mesh.DeviceMesh  # its ranks hold shards, or replicas of shards in the first dim
    tp: torch_mesh.DeviceMesh | None = None


pytestmark = pytest.mark.skipif(
    not PEERS.is_dir(),
    reason="not installed: pip install --target .venv/more/peers -r .ci/peers.txt",
)


def take(pattern: str, name: str, names: dict[str, Any]) -> Any:
    """Return a function or a class of an installed file, with the given names around it."""
    (path,) = PEERS.glob(pattern)
    tree = ast.parse(path.read_text())
    future = ast.ImportFrom("__future__", [ast.alias("annotations")], 0)
    found = [node for node in tree.body if getattr(node, "name", None) == name]
    module = types.ModuleType(f"taken_from_{path.stem}")
    sys.modules[module.__name__] = module  # where dataclasses look
    vars(module).update(names)
    code = ast.fix_missing_locations(ast.Module([future, *found], []))
    exec(compile(code, str(path), "exec"), vars(module))
    return vars(module)[name]


def groups_of(mesh: Any) -> Groups:
    return {name: mesh.get_group(name) for name in mesh.mesh_dim_names}


def accelerate(init: Init, tp: int = 2) -> Built:
    sizes = {"dp_replicate_size": 2, "dp_shard_size": 4 // tp, "tp_size": tp}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_mesh, "init_device_mesh", init)  # it imports it in its method
        root = parallelism_config.ParallelismConfig(**sizes).build_device_mesh("cpu")
    groups = {name: root.get_group(name) for name in (*root.mesh_dim_names, *FLATTENED)}
    return Built(groups, root["dp_replicate", "dp_shard_cp"], root["tp"] if tp > 1 else None)


def torchtitan(backend: str, init: Init, tp: int = 2) -> Built:
    names = {
        **{name: getattr(typing, name) for name in ("Any", "Literal")},
        **{name: getattr(dataclasses, name) for name in ("dataclass", "field")},
        "DeviceMesh": torch_mesh.DeviceMesh,
        "StrEnum": getattr(enum, "StrEnum", enum.Enum),
        "device_type": "cpu",
        "init_device_mesh": init,
        "logger": logging.getLogger("torchtitan"),
    }
    kind = take("torchtitan/distributed/parallel_dims.py", "ParallelDims", names)
    sizes = {"dp_replicate": 2, "dp_shard": 4 // tp, "cp": 1, "tp": tp, "pp": 1, "ep": 2}
    built = kind(**sizes, world_size=8, spmd_backend=backend)
    built.build_mesh()
    groups = {name: mesh.get_group() for name, mesh in built._single_axis_meshes.items()}
    dense = built._global_meshes["dense"]
    shard = "fsdp" if "fsdp" in dense.mesh_dim_names else "dp_shard"
    return Built(groups, dense["dp_replicate", shard], dense["tp"] if tp > 1 else None)


def verl(init: Init, fsdp: int = 4) -> Built:
    names = {"init_device_mesh": init, "get_device_name": lambda: "cpu"}
    create = take("verl/workers/engine/fsdp/utils.py", "create_device_mesh", names)
    data = create(8, fsdp)
    engine = groups_of(data)
    sequence = groups_of(init("cpu", mesh_shape=(4, 2), mesh_dim_names=["dp", "sp"]))
    rollout_dims = ["dp", "infer_tp", "infer_pp"]
    rollout = groups_of(init("cpu", mesh_shape=(2, 4, 1), mesh_dim_names=rollout_dims))
    kinds = {"engine": engine, "sequence": sequence, "rollout": rollout}
    named = {f"{kind} {n}": group for kind, own in kinds.items() for n, group in own.items()}
    return Built(named, data)


def lightning(init: Init, dp: int = 4) -> Built:
    path = "lightning/fabric/strategies/model_parallel.py"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_mesh, "init_device_mesh", init)  # it imports it in its function
        set_up = take(path, "_setup_device_mesh", {"torch": torch})
        root = set_up(dp, 8 // dp, 8, torch.device("cpu"))
        return Built(groups_of(root), root["data_parallel"], root["tensor_parallel"])


def openrlhf(init: Init, sp: int = 2) -> Built:
    given: Any = types.SimpleNamespace(
        **{"full_determinism": False, "seed": 0, "args": types.SimpleNamespace(local_rank=-1)},
        **{"ring_attn_size": sp, "ds_tensor_parallel_size": 2, "train_batch_size": 8},
        **{"micro_train_batch_size": 1, "setup_ring_attn": lambda mesh: None},
    )
    names = {
        "init_device_mesh": lambda kind, *sizes, **more: init("cpu", *sizes, **more),
        "deepspeed": types.SimpleNamespace(init_distributed=lambda timeout: None),
        "transformers": types.SimpleNamespace(set_seed=lambda seed: None),
        "timedelta": timedelta,
        "torch": torch,
        "dist": dist,
        "os": types.SimpleNamespace(environ={"LOCAL_RANK": "-1"}),
    }
    path = "**/openrlhf/utils/deepspeed/deepspeed.py"
    methods = next(PEERS.glob(path)).read_text()
    (kind,) = (
        node for node in ast.parse(methods).body if "def setup_distributed" in ast.unparse(node)
    )
    (method,) = (node for node in kind.body if getattr(node, "name", "") == "setup_distributed")  # type: ignore[attr-defined]
    exec(compile(ast.Module([method], []), path, "exec"), names)
    names["setup_distributed"](given)  # type: ignore[operator]
    root = given.ds_device_mesh
    return Built(groups_of(root), root["dp"], root["tp"])


def veomni(init: Init, sp: int = 2) -> Built:
    def quiet(*_: object, **more: object) -> None:
        """Log nothing."""

    calls = ("info_rank0", "warning_rank0", "info", "warning", "warning_once")
    (path,) = PEERS.glob("veomni/distributed/parallel_state.py")
    tree = ast.parse(path.read_text())
    tree.body = [
        node for node in tree.body if not isinstance(node, ast.ImportFrom) or node.level == 0
    ]
    tree.body = [node for node in tree.body if "get_logger" not in ast.unparse(node)]
    module: Any = types.ModuleType("taken_from_veomni")
    sys.modules[module.__name__] = module
    code = ast.unparse(tree).replace("DeviceMesh, init_device_mesh", "DeviceMesh")
    module.logger = types.SimpleNamespace(**dict.fromkeys(calls, quiet))
    module.get_device_type, module.init_device_mesh = lambda: "cpu", init
    exec(compile(code, str(path), "exec"), vars(module))
    sizes = {"dp_size": 8 // sp, "dp_shard_size": 8 // sp, "ulysses_size": sp}
    more = {"extra_parallel_sizes": (2,), "extra_parallel_names": ("ep",)}
    module.init_parallel_state(dp_replicate_size=1, device_type="cpu", **sizes, **more)
    state = module.get_parallel_state()
    return Built(groups_of(state.device_mesh), state.fsdp_mesh)


FLATTENED = ("dp", "dp_shard_cp", "dp_cp")  # by accelerate
BUILDERS: dict[str, Callable[..., Built]] = {
    "accelerate": accelerate,
    **{
        f"torchtitan {kind}": functools.partial(torchtitan, kind)
        for kind in ("spmd_types", "full_dtensor", "partial_dtensor")
    },
    "veomni": veomni,
    "verl": verl,
    "openrlhf": openrlhf,
    "lightning": lightning,
}
HEAD = (
    "| builder | version | groups, torch | groups, meshkit | seconds, torch | seconds, meshkit "
    "| a wrong size, torch | named by meshkit after |"
)
ODD = {"verl": {"fsdp": 2}, "lightning": {"dp": 2}, "openrlhf": {"sp": 4}, "veomni": {"sp": 4}}


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with start_pool(8) as ranks:
        yield ranks


def held() -> set[str]:
    """Return the names of the real groups of more than one rank that this rank holds."""
    world = dist.distributed_c10d._world.pg_map
    real = (group for group in world if group.size() > 1 and dist.get_backend(group) != "fake")
    return {group.group_name for group in real}


@contextlib.contextmanager
def ours() -> Iterator[Init]:
    """Yield meshkit's ``init_device_mesh``, and close the meshes that it has made."""
    made: list[Any] = []

    def init(*sizes: Any, **options: Any) -> Any:
        made.append(meshkit.init_device_mesh(*sizes, **options))
        return made[-1]

    yield init
    dist.barrier()
    for mesh in reversed(made):
        meshkit.Mesh.of(mesh).close()


@contextlib.contextmanager
def theirs() -> Iterator[Init]:
    """Yield torch's ``init_device_mesh``, and destroy the groups that it has made."""
    world = dist.distributed_c10d._world.pg_map
    before = {*world}
    yield torch_mesh.init_device_mesh
    dist.barrier()
    for group in {*world} - before:
        dist.destroy_process_group(group)


def describe(groups: Groups) -> dict[str, Any]:
    """Return the backend and the members of each group; members of real ones by an all-reduce."""
    described = {}
    for name, group in groups.items():
        members = dist.get_process_group_ranks(group)
        if dist.get_backend(group) != "fake":
            hot = torch.zeros(8)
            hot[dist.get_rank()] = 1
            dist.all_reduce(hot, group=group)
            assert hot.nonzero().flatten().tolist() == sorted(members), name
        described[name] = (
            dist.get_backend(group),
            members,
            dist.get_group_rank(group, dist.get_rank()),
        )
    return described


def build_both(name: str) -> Any:
    """Build with torch's ``init_device_mesh`` and with meshkit's; return groups and seconds."""
    results = []
    for way in (theirs, ours):
        with way() as init:
            before, began = held(), time.monotonic()
            groups = BUILDERS[name](init).groups
            seconds = time.monotonic() - began
            results.append((describe(groups), len(held() - before), seconds))
    return results


@pytest.mark.parametrize("name", BUILDERS)
def test_groups_are_those_that_the_project_expects(pool: Pool, name: str) -> None:
    for expected, built in pool.run(build_both, name):
        assert built[0] == expected[0]
        assert built[1] <= expected[1]  # groups that exist are used again


def train(name: str) -> list[bool]:
    """Train a step on the dims of a builder, and compare the gradients with one process."""
    with ours() as init:
        built = BUILDERS[name](init)
        return equals_one_process(built.data, built.tp)


@pytest.mark.parametrize("name", BUILDERS)
def test_a_step_on_its_dims_is_that_of_one_process(pool: Pool, name: str) -> None:
    assert pool.run(train, name) == [[True] * 4] * 8


def build_odd(name: str) -> tuple[str, float]:
    """Build with another size on rank 5; return the error and its seconds."""
    odd = ODD.get(name, {"tp": 1}) if dist.get_rank() == 5 else {}
    with ours() as init:
        began = time.monotonic()
        _, text = error_of(lambda: BUILDERS[name](init, **odd)) or ("", "")
        return text, time.monotonic() - began


@pytest.mark.parametrize("name", BUILDERS)
def test_a_rank_with_another_size_is_named(pool: Pool, name: str) -> None:
    for text, seconds in pool.run(build_odd, name):
        assert "rank" in text
        assert "5" in text, text
        assert seconds < WITHIN + BUSY


def build_odd_on_torch(name: str, seconds: float) -> None:
    """Build and use torch's groups with another size on rank 5; end a rank that hangs."""
    timer = threading.Timer(seconds + 1, os._exit, (1,))  # else all hang, and nobody ends them
    timer.daemon = True
    timer.start()
    odd = ODD.get(name, {"tp": 1}) if dist.get_rank() == 5 else {}
    with theirs() as init:
        describe(BUILDERS[name](init, **odd).groups)
    timer.cancel()


def play_odd_on_torch(name: str, seconds: float) -> list[str]:
    """Return what each rank that did not succeed said, after a wrong size on rank 5."""
    with start_pool(8) as ranks:
        ranks.run(held)  # all have started
        try:
            ranks.run(build_odd_on_torch, name, seconds, timeout=seconds)
        except AssertionError as error:
            return [line for line in str(error).splitlines() if line.startswith("rank ")]
    return []


@pytest.mark.slow
def test_torch_hangs_where_meshkit_names_the_rank() -> None:
    lines = play_odd_on_torch("verl", 5 + BUSY)
    assert lines == [f"rank {rank}: no answer in time" for rank in range(8)]


def test_the_page_has_a_row_for_each_builder() -> None:
    table = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    rows = [line.split(" | ")[0].strip("| ") for line in table.splitlines() if "|" in line]
    assert rows[2:] == [*BUILDERS]


def version(package: str) -> str:
    """Return the version of a package, also of one that only ``PEERS`` has."""
    path = [str(PEERS), *sys.path]
    (found, *_) = metadata.distributions(name=package, path=path)
    return found.version


def rows(repeats: int = 5, limit: int = 20) -> Iterator[str]:
    """Yield the rows of the table: medians of the seconds of the slowest rank."""
    yield HEAD
    yield "| --- | --- |" + " ---: |" * 4 + " --- | ---: |"
    with start_pool(8) as ranks:
        for name in BUILDERS:
            ranks.run(build_both, name)
            runs = [ranks.run(build_both, name) for _ in range(repeats)]
            groups = [max(result[way][1] for result in runs[0]) for way in (0, 1)]
            seconds = [
                median(max(result[way][2] for result in run) for run in runs) for way in (0, 1)
            ]
            named = max(took for _, took in ranks.run(build_odd, name))
            lines = play_odd_on_torch(name, limit)
            hang = sum("no answer in time" in line for line in lines)
            outcome = f"{hang} of 8 ranks hang, {len(lines) - hang} raise" if lines else "no error"
            figures = *groups, *(f"{took:.2f} s" for took in seconds), outcome, f"{named:.2f} s"
            yield f"| {name} | {version(name.split()[0])} | {' | '.join(map(str, figures))} |"


def update_page() -> str:
    """Put the table into the page, and return it."""
    table = "\n".join([BEGIN, *rows(), END])
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + table + rest.partition(END)[2])
    return table


if __name__ == "__main__":
    print(update_page())
