"""The loop over micro batches: gradients equal those of one process, for every wrapper."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import meshkit
from tests.faults import error_of

INVALID_COUNTS: tuple[list[Any], list[Any]] = (  # of other ranks, and of ranks 2 and 3
    [[1.5], [[1]], [1], [1], [0]],
    [[1.5], [[1]], ["a"], [-1], [0]],
)
WIDTH, LONGEST = 6, 9  # features of a token; tokens of the longest sample


class Model(nn.Module):
    """Two linear layers, sharded separately by fully_shard; the output is the loss of each row."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return the loss of each row: (..., WIDTH) to (...)."""
        return self.down(self.up(x).relu()).square().mean(-1)


def make_model(samples: int) -> tuple[Model, Tensor]:
    """Return the model and data (samples, LONGEST, WIDTH), float64, equal on every rank."""
    torch.manual_seed(11)
    data = torch.randn(samples, LONGEST, WIDTH, dtype=torch.float64)
    return Model().double(), data


def token_counts(samples: int) -> Tensor:
    """Return how many tokens of each sample count, from 0 to LONGEST."""
    return torch.arange(samples) * 7 % (LONGEST + 1)


def gradients_per_token(samples: int) -> dict[str, Tensor]:
    """Return the gradients of one process for the mean over all tokens that count."""
    model, data = make_model(samples)
    kept = torch.arange(LONGEST) < token_counts(samples)[:, None]
    model(data)[kept].mean().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def weigh_by_tokens(samples: int) -> Any:
    """Train one step on sequences of different lengths, over dp and sp, weighted by tokens."""
    with meshkit.build_mesh(dp=2, sp=2, tp=2) as mesh:
        plan = mesh.batch(global_batch=samples, micro_batch=2, uneven=True)
        model, data = make_model(samples)
        positions = torch.arange(LONGEST).tensor_split(2)[mesh.coordinate["sp"]]
        masks = []
        for micro in plan.micro_batches(0):
            kept = positions < token_counts(samples)[torch.from_numpy(micro.samples)][:, None]
            masks.append(kept & (not micro.is_filler))
        weights = mesh.token_weights([int(mask.sum()) for mask in masks])
        for micro, mask, weight in zip(plan.micro_batches(0), masks, weights, strict=True):
            losses = model(data[torch.from_numpy(micro.samples)][:, positions])
            mean = (losses * mask).sum() / mask.sum().clamp(min=1)  # 0 where nothing counts
            (mean * weight).backward()
        flat = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        dist.all_reduce(flat, group=mesh.group("dp", "sp"))
        expected = torch.cat([g.flatten() for g in gradients_per_token(samples).values()])
        refused = 0
        for counts in INVALID_COUNTS[mesh.rank in (2, 3)]:  # also the peers of an invalid rank
            with pytest.raises(meshkit.SpecError):
                mesh.token_weights(counts)
            refused += 1
        return float((flat / 4 - expected).abs().max()), weights.tolist(), refused


def ask_plans() -> Any:
    """Return the plans that mesh.batch makes, and the errors that it raises."""
    with meshkit.build_mesh(dp=2, sp=2, tp=2) as mesh, mesh.view(shard=4, tp=2) as view:
        plan = mesh.batch(global_batch=16, micro_batch=2)
        options: list[dict[str, Any]] = [{"data": 3}, {"data": "tq"}, {"global_batch": 15}]
        errors = [
            error_of(lambda o=o: mesh.batch(**{"global_batch": 8, "micro_batch": 1, **o}))
            for o in options
        ]
        both = mesh.batch(global_batch=16, micro_batch=2, data=("sp", "dp"))
        none = mesh.batch(global_batch=16, micro_batch=2, data=())
        even = meshkit.BatchPlan.solve(dp=2, global_batch=16, micro_batch=2)
        same = plan == even == plan.plan, plan.axes, repr(plan) == repr(even)
        part = meshkit.build_mesh(ranks=range(4), dp=4)
        outside = part.batch(global_batch=16, micro_batch=2)
        shares = plan.data_index, both.data_index, none.data_index, outside.data_index
        own = plan.samples(1).tolist(), plan.samples(1, 1).tolist()
        shard = view.batch(global_batch=16, micro_batch=2, data="shard").data_index
        errors.append(error_of(lambda: outside.samples(0)))
        mesh.agree("plan", plan)
        other = mesh.batch(global_batch=16, micro_batch=1 if mesh.rank == 3 else 2)
        errors.append(error_of(lambda: mesh.agree("plan", other)))
        schedule = meshkit.BatchSchedule(plan, ((0, 8), (16, 16))).at(16)
        grown = [micro.samples.tolist() for micro in schedule.micro_batches(0, first=16)]
        part.close()
        kinds = [type(each).__name__ for each in (schedule, plan.resize(3))]
        return same, shares, shard, own, grown, kinds, [error and error[0] for error in errors]


def run_on_eight_ranks() -> Any:
    """Run the jobs of eight ranks."""
    return {8: weigh_by_tokens(8), 6: weigh_by_tokens(6), "plans": ask_plans()}


@pytest.fixture(scope="module")
def eight() -> list[Any]:
    """Return the results of eight ranks."""
    return meshkit.spawn(run_on_eight_ranks, 8, timeout=120)


def shard_fully(model: nn.Module) -> nn.Module:
    """Apply FSDP2 to each layer and to the model."""
    from torch.distributed.fsdp import fully_shard

    for part in model.children():
        fully_shard(part)
    return fully_shard(model)


def average_gradients(mesh: meshkit.Mesh, model: nn.Module) -> None:
    """Average the gradients, as a trainer without a wrapper does after the loop."""
    for p in model.parameters():
        dist.all_reduce(p.grad, group=mesh.group("dp"))
        p.grad /= mesh.size("dp")  # type: ignore[operator]


def gradient_gap(model: nn.Module, expected: dict[str, Tensor]) -> float:
    """Return the largest difference between the full gradients and the expected ones."""
    names = {name: name.removeprefix("_orig_mod.") for name, _ in model.named_parameters()}
    results = {names[name].removeprefix("module."): p.grad for name, p in model.named_parameters()}
    assert results.keys() == expected.keys()
    whole = {n: g.full_tensor() if hasattr(g, "full_tensor") else g for n, g in results.items()}
    return max(float((whole[n] - expected[n]).abs().max()) for n in expected)


def gradients_per_sample(samples: int) -> dict[str, Tensor]:
    """Return the gradients of one process for the mean over all samples."""
    model, data = make_model(samples)
    model(data).mean().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def train_one_step(
    mesh: meshkit.Mesh, plan: Any, wrap: Callable[[Any], Any], samples: int
) -> tuple[Any, ...]:
    """Train one step; return the gradient gap, the reductions of each micro step, and own steps."""
    from torch.distributed.tensor.debug import CommDebugMode

    model, data = make_model(samples)
    wrapped, sent = wrap(model), []
    for micro in plan.micro_batches(0):
        with CommDebugMode() as comm, plan.sync_on_last(wrapped, micro):
            loss = wrapped(data[torch.from_numpy(micro.samples)]).mean()
            (loss * micro.weight).backward()
        counts = {str(op).rpartition(".")[2]: n for op, n in comm.get_comm_counts().items()}
        sent.append(sum(n for op, n in counts.items() if "reduce" in op))
    if type(wrapped) is Model:  # neither DDP nor FSDP2, which makes it one of its own
        average_gradients(mesh, model)
    return (
        gradient_gap(wrapped, gradients_per_sample(samples)),
        sent,
        plan.num_micro_batches(plan.data_index),
    )


def train_with_every_wrapper(samples: int, compiled: bool) -> Any:
    """Train one step with DDP, with FSDP2 and without a wrapper, over all ranks."""
    with meshkit.build_mesh(dp=-1) as mesh:
        plan = mesh.batch(global_batch=samples, micro_batch=2, uneven=True)
        wraps: dict[str, Callable[[Any], Any]] = {
            "ddp": lambda m: DistributedDataParallel(m, process_group=mesh.group("dp")),
            "static": lambda m: DistributedDataParallel(
                m, process_group=mesh.group("dp"), static_graph=True
            ),
            "fsdp2": shard_fully,
            "none": lambda m: m,
        }
        if compiled:
            # the name "eager" would import every backend
            wraps["compiled"] = lambda m: torch.compile(
                wraps["ddp"](m), backend=lambda graph, _: graph.forward
            )
        return {name: train_one_step(mesh, plan, wrap, samples) for name, wrap in wraps.items()}


def count_reductions(model: nn.Module, data: Tensor, inside: Any = nullcontext) -> dict[str, int]:
    """Return the collectives that reduce gradients in one forward and backward."""
    from torch.distributed.tensor.debug import CommDebugMode

    with CommDebugMode() as comm, inside():
        model(data).mean().backward()
    counts = {str(op).rpartition(".")[2]: n for op, n in comm.get_comm_counts().items()}
    return {op: n for op, n in counts.items() if "reduce" in op}


def leave_blocks() -> Any:
    """Return the reductions after blocks of sync_on_last, by what the caller had set before."""
    from torch.distributed.fsdp import fully_shard

    reports: dict[str, Any] = {}
    with meshkit.build_mesh(dp=2, sp=2) as mesh:
        plan = mesh.batch(global_batch=8, micro_batch=2)
        early, *_, last = plan.micro_batches(0)
        assert (early.is_last, last.is_last) == (False, True)

        def leave(name: str, model: nn.Module, data: Tensor) -> None:
            before = count_reductions(model, data)
            for micro in (early, last):
                with plan.sync_on_last(model, micro):
                    count_reductions(model, data)
            with suppress(ZeroDivisionError), plan.sync_on_last(model, early):
                with plan.sync_on_last(model, early):
                    pass
                raise ZeroDivisionError
            reports[name] = before, count_reductions(model, data)

        hybrid = mesh.device_mesh("dp sp")
        for name, change in {
            "as it is": lambda m: None,
            "no sync": lambda m: m.set_requires_gradient_sync(False),
            "no sync of a part": lambda m: m.up.set_requires_gradient_sync(False),
            "no all-reduce": lambda m: m.set_requires_all_reduce(False),
        }.items():
            model, data = make_model(2)
            for part in model.children():
                fully_shard(part, mesh=hybrid)
            change(fully_shard(model, mesh=hybrid))
            leave(name, model, data)
        model, data = make_model(2)
        ddp = DistributedDataParallel(model, process_group=mesh.group())
        leave("ddp", ddp, data)
        with ddp.no_sync():
            leave("ddp without sync", ddp, data)
    return reports


def test_after_sync_on_last_the_model_synchronises_as_before() -> None:
    reports = meshkit.spawn(leave_blocks, 4, timeout=120)
    assert reports == [reports[0]] * 4
    for name, (before, after) in reports[0].items():
        assert after == before, name
    both, part = reports[0]["as it is"][0], reports[0]["no sync of a part"][0]
    assert reports[0]["no sync"][0] == reports[0]["ddp without sync"][0] == {}
    assert 0 < sum(part.values()) < sum(both.values())
    assert {*reports[0]["no all-reduce"][0]} < {*both}


def confuse_arguments() -> list[str]:
    """Return the errors of arguments that are missing, exchanged, or of another call."""
    with meshkit.build_mesh(dp=2) as mesh:
        plan, model = mesh.batch(global_batch=8, micro_batch=2), torch.nn.Linear(1, 1)
        with pytest.raises(meshkit.SpecError) as number, plan.sync_on_last(model, 0):  # type: ignore[arg-type]
            pass
        with pytest.raises(meshkit.BatchError) as exchanged:
            mesh.sampler(plan, list(range(64)))  # type: ignore[arg-type]
        micro = next(plan.micro_batches(0))
        with pytest.raises(meshkit.SpecError) as swapped, plan.sync_on_last(micro, model):  # type: ignore[arg-type]
            pass
        with pytest.raises(meshkit.SpecError) as several, plan.sync_on_last([model], micro):  # type: ignore[arg-type]
            pass
        assert "model is a list, not a module." in str(several.value)
        untyped: Any = mesh
        with pytest.raises(meshkit.BatchError) as missing:
            untyped.sampler(range(64))
        with pytest.raises(meshkit.BatchError) as beside:
            untyped.loader(range(64), batch_size=4)
        with pytest.raises(meshkit.MeshkitError) as surplus:
            untyped.sampler(range(64), plan, batch_size=4)
        return [str(e.value) for e in (number, exchanged, swapped, missing, beside, surplus)]


def test_exchanged_and_other_arguments_are_named() -> None:
    for texts in meshkit.spawn(confuse_arguments, 2, timeout=60):
        number, exchanged, swapped, sampler, loader, of_batch = texts
        call = "plan.sync_on_last(model, micro)"
        assert number.startswith(f"{call}: micro is 0, not a micro batch.")
        assert "for micro in sampler.micro_batches(step)" in number
        assert "the dataset is a batch plan." in exchanged
        assert "Fix: the dataset first, then the plan." in exchanged
        assert swapped == (
            f"{call}: micro is a model, not a micro batch.\n  Fix: {call}, the model first."
        )
        plan = "mesh.batch(global_batch=64, micro_batch=4)"
        assert sampler.endswith(f"\n  Fix: for example mesh.sampler(dataset, {plan}).")
        plan = "mesh.batch(micro_batch=4, accumulation_steps=1)"
        assert loader.endswith(f"\n  Fix: mesh.loader(dataset, {plan}).")
        assert "batch_size is an option of mesh.batch." in of_batch


@pytest.mark.parametrize(("ranks", "samples"), [(2, 8), (7, 64), (4, 6)])
def test_gradients_are_those_of_one_process_and_are_synchronised_once(
    ranks: int, samples: int
) -> None:
    """4 micro batches over 2 ranks, 32 over 7, and 3 over 4, one rank having a filler."""
    steps = -(-samples // 2 // ranks)
    compiled = ranks == 2  # which takes seconds a rank
    results = meshkit.spawn(train_with_every_wrapper, ranks, (samples, compiled), timeout=120)
    assert sum(row["none"][2] for row in results) == samples // 2
    for row in results:
        for name, (gap, sent, _) in row.items():
            assert gap < 1e-14, name
            assert len(sent) == steps
            learns = name == "static"  # the graph, in the first backward
            assert sent[learns:-1] == [0] * (steps - 1 - learns), name
        assert row["ddp"][1][-1] == 1  # one bucket
        assert row["static"][1][0] > 0 < row["static"][1][-1]
        assert row["fsdp2"][1][-1] == 2  # a reduce-scatter a layer; the root has nothing of its own
        assert row["none"][1][-1] == 0
        assert not compiled or row["compiled"][1][-1] == 1


@pytest.mark.parametrize("samples", [8, 6])
def test_by_tokens_the_gradient_is_that_of_the_mean_over_all_tokens(
    samples: int, eight: list[Any]
) -> None:
    results = [of_rank[samples] for of_rank in eight]
    total = int(token_counts(samples).sum())
    assert sum(sum(weights) for _, weights, _ in results) == pytest.approx(4 * 2)
    for gap, weights, refused in results:
        assert gap < 1e-14
        assert all(
            weight * total / 4 == pytest.approx(round(weight * total / 4)) for weight in weights
        )
        assert refused == 5


def test_a_plan_of_a_mesh_knows_the_share_of_its_rank(eight: list[Any]) -> None:
    results = [of_rank["plans"] for of_rank in eight]
    for rank, (same, shares, shard, own, grown, kinds, errors) in enumerate(results):
        dp, sp = rank // 4, rank // 2 % 2
        assert same == (True, ("dp",), True)
        assert shares == (dp, sp * 2 + dp, 0, rank if rank < 4 else None)
        assert shard == rank // 2
        steps = [[16 + 4 * a + 2 * d + i for i in range(2)] for d in (dp, 1) for a in range(4)]
        assert own == (steps[:4], steps[4:])
        assert grown == steps[:4]
        assert kinds == ["RankBatch", "BatchPlan"]
        assert errors == [
            *("SpecError", "UnknownAxisError", "BatchError"),
            None if rank < 4 else "CoordinateError",
            "DisagreementError",
        ]
