"""What the ranks of test_loop.py run. No pytest here: every child imports this.

Whole rooms of torch are imported where they are used: eight ranks on two cores feel each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import meshkit

WIDTH, LONGEST = 6, 9


class Model(nn.Module):
    """Two layers, each by itself under fully_shard; the loss of every row."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """(..., WIDTH) to (...)."""
        return self.down(self.up(x).relu()).square().mean(-1)


def fresh(samples: int) -> tuple[Model, Tensor]:
    """The same on every rank and in one process, in float64: (samples, LONGEST, WIDTH)."""
    torch.manual_seed(11)
    data = torch.randn(samples, LONGEST, WIDTH, dtype=torch.float64)
    return Model().double(), data


def lengths(samples: int) -> Tensor:
    """How many tokens of each sample count: from 0 to LONGEST."""
    return torch.arange(samples) * 7 % (LONGEST + 1)


def sharded(model: nn.Module) -> nn.Module:
    """FSDP2 over every part and the whole."""
    from torch.distributed.fsdp import fully_shard

    for part in model.children():
        fully_shard(part)
    return fully_shard(model)


def per_sample(samples: int) -> dict[str, Tensor]:
    """The gradients of one process for the mean over all samples."""
    model, data = fresh(samples)
    model(data).mean().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def per_token(samples: int) -> dict[str, Tensor]:
    """The gradients of one process for the mean over all tokens that count."""
    model, data = fresh(samples)
    kept = torch.arange(LONGEST) < lengths(samples)[:, None]
    model(data)[kept].mean().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def gap(model: nn.Module, expected: dict[str, Tensor]) -> float:
    """How far gradients, put together again, are from those of one process."""
    names = {name: name.removeprefix("_orig_mod.") for name, _ in model.named_parameters()}
    found = {names[name].removeprefix("module."): p.grad for name, p in model.named_parameters()}
    assert found.keys() == expected.keys()
    whole = {n: g.full_tensor() if hasattr(g, "full_tensor") else g for n, g in found.items()}
    return max(float((whole[n] - expected[n]).abs().max()) for n in expected)


def averaged(mesh: meshkit.Mesh, model: nn.Module) -> None:
    """What a trainer without a wrapper does after the loop."""
    for p in model.parameters():
        dist.all_reduce(p.grad, group=mesh.group("dp"))
        p.grad /= mesh.size("dp")  # type: ignore[operator]


def run(mesh: meshkit.Mesh, plan: Any, wrap: Callable[[Any], Any], samples: int) -> tuple[Any, ...]:
    """One step by the loop of the docstring: the gap, and what was communicated after which."""
    from torch.distributed.tensor.debug import CommDebugMode

    model, data = fresh(samples)
    wrapped, sent = wrap(model), []
    for micro in plan.micro_batches(0):
        with CommDebugMode() as comm, plan.sync_on_last(wrapped, micro):
            loss = wrapped(data[torch.from_numpy(micro.samples)]).mean()
            (loss * micro.weight).backward()
        counts = {str(op).rpartition(".")[2]: n for op, n in comm.get_comm_counts().items()}
        sent.append(sum(n for op, n in counts.items() if "reduce" in op))
    if type(wrapped) is Model:  # neither DDP nor FSDP2, which makes it one of its own
        averaged(mesh, model)
    return gap(wrapped, per_sample(samples)), sent, plan.num_micro_batches(plan.data_index)


def steps_of_every_wrapper(samples: int, compiled: bool) -> Any:
    """DDP, FSDP2 and nothing, over as many ranks as there are; uneven where it must be."""
    with meshkit.build_mesh(dp=-1) as mesh:
        plan = mesh.batch(global_batch=samples, micro_batch=2, uneven=True)
        wraps: dict[str, Callable[[Any], Any]] = {
            "ddp": lambda m: DistributedDataParallel(m, process_group=mesh.group("dp")),
            "fsdp2": sharded,
            "none": lambda m: m,
        }
        if compiled:
            wraps["compiled"] = lambda m: torch.compile(wraps["ddp"](m), backend="eager")
        return {name: run(mesh, plan, wrap, samples) for name, wrap in wraps.items()}


def of_eight() -> Any:
    """What is asked of eight ranks, in one job."""
    return {8: by_tokens(8), 6: by_tokens(6), "plans": plans()}


def by_tokens(samples: int) -> Any:
    """Sequences of different lengths, split over sp too: the gap, and the weights."""
    with meshkit.build_mesh(dp=2, sp=2, tp=2) as mesh:
        plan = mesh.batch(global_batch=samples, micro_batch=2, uneven=True)
        model, data = fresh(samples)
        here = torch.arange(LONGEST).tensor_split(2)[mesh.coordinate["sp"]]
        masks = []
        for micro in plan.micro_batches(0):
            kept = here < lengths(samples)[torch.from_numpy(micro.samples)][:, None]
            masks.append(kept & (not micro.is_filler))
        weights = mesh.token_weights([int(mask.sum()) for mask in masks])
        for micro, mask, weight in zip(plan.micro_batches(0), masks, weights, strict=True):
            losses = model(data[torch.from_numpy(micro.samples)][:, here])
            mean = (losses * mask).sum() / mask.sum().clamp(min=1)  # 0 where nothing counts
            (mean * weight).backward()
        flat = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        dist.all_reduce(flat, group=mesh.group("dp", "sp"))
        expected = torch.cat([g.flatten() for g in per_token(samples).values()])
        refused = []
        for mine in (
            [1.5],
            [[1]],
            ["a"] if mesh.rank in (2, 3) else [1],
            [-1] if mesh.rank in (2, 3) else [1],
            [0],
        ):
            try:
                mesh.token_weights(mine)  # type: ignore[arg-type]
            except meshkit.SpecError as error:
                refused.append(str(error))
        return float((flat / 4 - expected).abs().max()), weights.tolist(), refused


def plans() -> Any:
    """What mesh.batch gives: whose share, and what is refused."""
    with meshkit.build_mesh(dp=2, sp=2, tp=2) as mesh, mesh.view(shard=4, tp=2) as view:
        plan = mesh.batch(global_batch=16, micro_batch=2)
        told = []
        for options in ({"data": 3}, {"data": "tq"}, {"data": "dp dp"}, {"global_batch": 15}):
            try:
                mesh.batch(**{"global_batch": 8, "micro_batch": 1, **options})  # type: ignore[arg-type]
            except meshkit.MeshkitError as error:
                told.append(str(error))
        both = mesh.batch(global_batch=16, micro_batch=2, data=("sp", "dp"))
        none = mesh.batch(global_batch=16, micro_batch=2, data=())
        same = plan == meshkit.BatchPlan.solve(dp=2, global_batch=16, micro_batch=2)
        part = meshkit.build_mesh(ranks=range(4), dp=4)
        outside = part.batch(global_batch=16, micro_batch=2)
        shares = plan.data_index, both.data_index, none.data_index, outside.data_index
        own = plan.samples(1).tolist(), plan.samples(1, 1).tolist()
        shard = view.batch(global_batch=16, micro_batch=2, data="shard").data_index
        try:
            part.inside or outside.samples(0)
        except meshkit.CoordinateError as error:
            told.append(str(error))
        schedule = meshkit.BatchSchedule.from_text(plan, "0:8 16:16").at(16)
        grown = [micro.samples.tolist() for micro in schedule.micro_batches(0, first=16)]
        part.close()
        return same, shares, shard, own, grown, type(plan.resize(3)).__name__, told
