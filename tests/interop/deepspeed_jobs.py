"""What the ranks of test_deepspeed run: DeepSpeed itself on a mesh, and plain torch beside it."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

import meshkit
from meshkit.interop.deepspeed import Mpu

STEPS = 4


@contextlib.contextmanager
def strict() -> Iterator[None]:
    """Warnings are errors, but for those of DeepSpeed's own calls to torch."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "`torch.jit.script", DeprecationWarning)
        warnings.filterwarnings("ignore", "`torch.distributed.all_gather_into_", FutureWarning)
        yield


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))


def sample(step: int, part: int) -> torch.Tensor:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * step + part))


def loss_of(network: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = (network(x) - x).square().mean()
    return loss


def plain(parts: int, lr: float = 0.1) -> list[list[float]]:
    """The loss of each part in each step, on one process."""
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=lr)
    found = []
    for step in range(STEPS):
        losses = [loss_of(network, sample(step, part)) for part in range(parts)]
        optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        optimizer.step()
        found.append([float(loss.detach()) for loss in losses])
    return found


class Trained(NamedTuple):
    """What a rank saw.

    Attributes:
        losses: of its own samples, by step.
        made: how many groups DeepSpeed made.
        zero: the ranks over which the optimizer is split.
        batch: what DeepSpeed takes the global batch for.
    """

    losses: list[float]
    made: int
    zero: list[int]
    batch: int


def trained(
    environ: dict[str, str], sizes: dict[str, int], cases: list[tuple[int, bool]]
) -> list[Trained]:
    """Train under ZeRO on a mesh.

    Args:
        environ: which device DeepSpeed takes, where it compiles and with what.
        sizes: of the mesh.
        cases: the stage of ZeRO, and whether the loss is this rank's share of the mean over the
            sequence, not the mean over its own part.
    """
    os.environ.update(environ)
    with strict(), meshkit.build_mesh(sizes) as mesh:
        return [train(mesh, stage, share) for stage, share in cases]


def train(mesh: meshkit.Mesh, stage: int, share: bool) -> Trained:
    import deepspeed

    network = model()
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.0,  # DeepSpeed clips to 1 where nothing is said
    }
    before = len(dist.distributed_c10d._world.pg_map)
    engine, optimizer, *_ = deepspeed.initialize(
        model=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=0.1),
        mpu=Mpu(mesh),
        config=config,
    )
    sp = mesh.layout.sizes.get("sp", 1)
    part = mesh.coordinate["dp"] * sp + mesh.coordinate.get("sp", 0)
    losses = []
    for step in range(STEPS):
        loss = loss_of(engine, sample(step, part))
        engine.backward(loss / sp if share else loss)
        engine.step()
        losses.append(float(loss.detach()))
    made = len(dist.distributed_c10d._world.pg_map) - before
    group = dist.get_process_group_ranks(optimizer.dp_process_group)
    return Trained(losses, made, group, engine.train_batch_size())


def asked(sizes: dict[str, int], groups: list[str], roles: dict[str, str]) -> Any:
    """What every method of an mpu answers; and that none does once the mesh is closed."""
    with meshkit.build_mesh(sizes, groups=groups) as mesh:
        before = len(dist.distributed_c10d._world.pg_map)
        mpu = Mpu(mesh, **roles)
        methods = sorted(name for name in vars(mpu) if name.startswith("get_"))
        answers = {name: getattr(mpu, name)() for name in methods}
        same = {n: answers.pop(n) for n in methods if n.endswith("_group")}
        answers["src"] = mpu.get_tensor_model_parallel_src_rank()
        made = len(dist.distributed_c10d._world.pg_map) - before
        ranks = {name: dist.get_process_group_ranks(group) for name, group in same.items()}
    closed = told(mpu.get_data_parallel_group)
    return answers, ranks, made, closed, hasattr(mpu, "initialize_sequence_parallel")


def refused(cases: list[tuple[dict[str, int], dict[str, str]]]) -> list[str]:
    """What is said of roles that cannot be."""
    found = []
    for sizes, roles in cases:
        with meshkit.build_mesh(sizes) as mesh:
            found.append(told(lambda: Mpu(mesh, **roles)))  # noqa: B023
    return found


def told(do: Any) -> str:
    try:
        do()
    except meshkit.MeshkitError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"
