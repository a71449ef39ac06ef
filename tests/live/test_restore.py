"""recovery.restore: shards of HSDP, states that differ by a step, and states that nobody holds."""

from __future__ import annotations

import ast
import io
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import meshkit
from meshkit.core.errors import SpecError
from meshkit.live.restore import from_local, to_local
from meshkit.testing.faults import Played, Strike, play
from tests.live.faults import error_of
from tests.live.newer_torch import needs_slices
from tests.live.side_by_side import side_by_side

GUARD = 3.0


def make_model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    return model.to(torch.float64)


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.1)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> float:
    """Run one step on the same samples on every rank, so that no mesh changes the result."""
    x = torch.arange(8, dtype=torch.float64).reshape(2, 4) / 8 + step
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return float(loss.detach())


def losses_alone(steps: int) -> list[float]:
    model = make_model(0)
    optimizer = make_optimizer(model)
    return [train_step(model, optimizer, step) for step in range(steps)]


def make_sharded(mesh: meshkit.Mesh, seed: int, pattern: str) -> nn.Module:
    model = make_model(seed)
    for layer in (model[0], model[2]):  # type: ignore[index]
        fully_shard(layer, mesh=mesh.device_mesh(pattern))
    return fully_shard(model, mesh=mesh.device_mesh(pattern))


def train_sharded(strike: Strike, sizes: dict[str, int], odd: tuple[int, ...]) -> Any:
    """Train under FSDP2 over all axes, lose ranks, and go on with the others."""
    mesh = meshkit.build_mesh(sizes)
    rank, pattern = mesh.rank, " ".join(sizes)
    model = make_sharded(mesh, 0, pattern)
    state: Any = (model, make_optimizer(model), {"losses": []})
    while len(losses := state[2]["losses"]) < 6 and mesh.inside:
        try:
            with mesh.guard(timeout=GUARD):
                if rank in odd and len(losses) == 3:
                    strike.kill()
                losses.append(train_step(state[0], state[1], len(losses)))
        except meshkit.CollectiveError:
            mesh = mesh.recover(step=len(losses))
            if mesh.inside:
                model = make_sharded(mesh, 7, pattern)
                new = model, make_optimizer(model), {"losses": []}
                mesh.recovery.restore(*new, held=state)
                state = new
    shards = [p for p in state[0].parameters() if isinstance(p, DTensor)]
    mesh.close()
    return mesh.inside, len(shards), state[2]["losses"]


def lose_a_part(strike: Strike) -> Any:
    """Lose both ranks that hold the part of tp=1."""
    mesh = meshkit.build_mesh(dp=2, tp=2)
    state = {"weight": torch.zeros(2)}
    try:
        with mesh.guard(timeout=GUARD):
            if mesh.coordinate["tp"]:
                strike.kill()
            dist.all_reduce(torch.ones(1), group=mesh.group())
    except meshkit.CollectiveError:
        mesh = mesh.recover(step=7)
    mesh.recovery.restore(state)


JOBS: dict[str, Callable[[], Played]] = {
    "hsdp": lambda: play(train_sharded, 6, ({"replicate": 3, "shard": 2}, (2, 4)), timeout=120),
    "fsdp": lambda: play(train_sharded, 3, ({"dp": 3}, (1,)), timeout=120),
    "lost": lambda: play(lose_a_part, 4, timeout=120),
}


@pytest.fixture(scope="module")
def played() -> Iterator[dict[str, Future[Played]]]:
    with side_by_side(JOBS, at_once=2) as results:
        yield results


def test_a_rank_gets_the_shards_of_its_new_place(played: dict[str, Future[Played]]) -> None:
    job = played["hsdp"].result()
    assert job.fired in (2, 4)
    assert {rank: job.ends[rank] for rank in (2, 4)} == {2: "SIGKILL", 4: "SIGKILL"}
    assert sorted(job.outcomes) == [0, 1, 3, 5]
    for rank in (0, 1, 3, 5):
        assert job.outcomes[rank].kind == "returned", job.outcomes[rank]
        inside, num_shards, losses = ast.literal_eval(job.outcomes[rank].text)
        assert (inside, num_shards) == (True, 4)
        assert losses == pytest.approx(losses_alone(6), abs=1e-12)


@pytest.mark.parametrize(
    ("job", "fired", "texts"),
    [
        ("fsdp", (1,), ("is sharded over dp.", "shards of rank 1.", "checkpoint of step 3")),
        ("lost", (1, 3), ("holds the state of tp=1.", "checkpoint of step 7")),
    ],
)
def test_a_part_that_no_rank_holds_needs_a_checkpoint(
    job: str, fired: tuple[int, ...], texts: tuple[str, ...], played: dict[str, Future[Played]]
) -> None:
    outcomes = played[job].result().outcomes
    assert played[job].result().fired in fired
    assert {outcomes[rank].kind for rank in (0, 2)} == {"MeshkitError"}
    for rank in (0, 2):
        assert all(text in outcomes[rank].text for text in texts), outcomes[rank]


def fail(mesh: meshkit.Mesh, step: int) -> meshkit.Mesh:
    """Recover as after a collective that has failed on all ranks."""
    try:
        raise meshkit.CollectiveError("played")
    except meshkit.CollectiveError:
        return mesh.recover(step=step)


def fall_behind() -> Any:
    """Recover where rank 1 has completed one step less, and rank 2 one step more, than rank 0."""
    mesh = meshkit.build_mesh(dp=4, tp=1)
    steps = (5, 4, 6, 5)[mesh.rank]
    model = DistributedDataParallel(make_model(0), process_group=mesh.gradient_group())
    model.load_state_dict({k: v + steps for k, v in model.state_dict().items()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    model(torch.ones(1, 4, dtype=torch.float64)).sum().backward()
    optimizer.step()
    nested = torch.full((2, 2), steps)
    extra = {
        "float": float(steps),
        "nested": {"tensor": nested, 3: (1, [True, None, "a"])},
        "bfloat16": torch.full((), steps, dtype=torch.bfloat16),
        "complex": torch.full((2,), steps + 1j),
        "empty": torch.zeros(0, 3),
    }
    mesh = fail(mesh, steps)
    lacks = mesh.recovery.lacks_state
    mesh.recovery.restore(model, optimizer, extra)
    assert nested is extra["nested"]["tensor"]  # type: ignore[index]  # changed in place
    weights = {name: value.tolist() for name, value in model.state_dict().items()}
    group = optimizer.state_dict()
    momentum = [state["momentum_buffer"].tolist() for state in group["state"].values()]
    return mesh.recovery.step, lacks, weights, momentum, group["param_groups"], repr(extra)


def test_ranks_that_are_behind_get_the_most_advanced_step() -> None:
    results = meshkit.spawn(fall_behind, 4, timeout=120)
    assert [step for step, *_ in results] == [6] * 4
    assert [lacks for _, lacks, *_ in results] == [True, True, False, True]
    assert all(rest[2:] == results[2][2:] for rest in results)


def make_tensor_parallel(mesh: meshkit.Mesh, seed: int, dims: str, layers: str) -> nn.Module:
    """Return a model under FSDP2 with column-wise layers, and maybe row-wise ones and norms."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.LayerNorm(4) if "norm" in layers else nn.Identity(),
        nn.Linear(4, 8),
        nn.Tanh(),
        nn.Linear(8, 4),
    ).to(torch.float64)
    if mesh.layout.sizes.get("tp", 1) > 1:
        whole = ColwiseParallel(output_layouts=Replicate())
        plan = {"1": ColwiseParallel(), "3": RowwiseParallel()}
        parallelize_module(
            model, mesh.device_mesh("tp"), plan if "row" in layers else {"1": whole, "3": whole}
        )
    return fully_shard(model, mesh=mesh.device_mesh(dims))


def train_tensor_parallel(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> Any:
    for step in range(steps):
        x = torch.arange(8, dtype=torch.float64).reshape(2, 4).sin() + step
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    full = [parameter.full_tensor() for parameter in model.parameters()]  # type: ignore[attr-defined]
    return [value.tolist() for value in full]


def restore_tensor_parallel(sizes: dict[str, int], dims: str, layers: str) -> Any:
    """Restore on ranks that are a step behind; return all weights after a further step."""
    mesh = meshkit.build_mesh(sizes)
    behind = mesh.rank in range(3)
    old = make_tensor_parallel(mesh, 0, dims, layers)
    held = old, make_optimizer(old)
    train_tensor_parallel(*held, steps=2)
    if behind:
        with torch.no_grad():
            for parameter in old.parameters():
                parameter.to_local().fill_(-1)  # type: ignore[attr-defined]
    mesh = fail(mesh, 1 if behind else 2)
    new = make_tensor_parallel(mesh, 7, dims, layers)
    objects = new, make_optimizer(new)
    try:
        mesh.recovery.restore(*objects, held=held)
    except meshkit.MeshkitError as error:
        return str(error)
    return train_tensor_parallel(*objects, steps=1)


def weights_alone(layers: str) -> Any:
    mesh = meshkit.build_mesh(dp=1)
    model = make_tensor_parallel(mesh, 0, "dp", layers)
    optimizer = make_optimizer(model)
    train_tensor_parallel(model, optimizer, steps=2)
    return train_tensor_parallel(model, optimizer, steps=1)


@needs_slices
def test_shards_of_column_wise_layers_need_a_checkpoint() -> None:
    arguments = {"dp": 2, "tp": 2}, "dp", "column"
    for text in meshkit.spawn(restore_tensor_parallel, 4, arguments, timeout=120):
        assert "is sharded over dp" in str(text)


@needs_slices
def test_a_rank_gets_its_shards_of_column_wise_and_row_wise_layers() -> None:
    arguments = {"replicate": 2, "shard": 2, "tp": 2}, "replicate shard", "norm column row"
    (alone,) = meshkit.spawn(weights_alone, 1, ("norm column row",), timeout=120)
    for weights in meshkit.spawn(restore_tensor_parallel, 8, arguments, timeout=120):
        for value, expected in zip(weights, alone, strict=True):
            torch.testing.assert_close(torch.tensor(value), torch.tensor(expected))


def take_the_shard_of_another_coordinate() -> Any:
    """Recover HSDP with shards, then give one rank the other shard; check before and after."""
    mesh = fail(meshkit.build_mesh({"replicate": 2, "shard": 2}), 1)
    model = make_sharded(mesh, 0, "replicate shard")
    mesh.recovery.restore(model)
    mesh.check_parameters(model)
    if mesh.rank == 3:  # it is at shard=1
        whole = make_model(0).state_dict()
        for name, parameter in model.named_parameters():
            other = whole[name].chunk(2)[0]
            with torch.no_grad():
                parameter.to_local().copy_(other)  # type: ignore[attr-defined]
    return error_of(lambda: mesh.check_parameters(model))


def test_check_parameters_finds_the_shard_of_another_coordinate_after_a_recovery() -> None:
    for kind, text, *_ in meshkit.spawn(take_the_shard_of_another_coordinate, 4, timeout=120):
        assert kind == "DisagreementError"
        assert "differs along replicate." in text
        assert "rank 1 (replicate=0 shard=1)" in text
        assert "rank 3 (replicate=1 shard=1)" in text


def restore_without_held() -> Any:
    """Restore with held=None for each object: on the rank that is behind, then on both."""
    mesh, state = meshkit.build_mesh(dp=2), {"steps": 0}
    mesh.recovery.restore(state, held=(None,))  # before the first recovery nothing happens
    mesh = fail(mesh, 4 if mesh.rank else 3)
    state = {"steps": 4 if mesh.rank else 3}
    mesh.recovery.restore(state, held=(dict(state) if mesh.rank else None,))
    again = fail(mesh, 4)
    return state["steps"], error_of(lambda: again.recovery.restore(state, held=(None,)))


def test_a_rank_without_the_old_objects_holds_none() -> None:
    for steps, error in meshkit.spawn(restore_without_held, 2, timeout=120):
        assert steps == 4
        assert error[0] == "SpecError"
        assert "holds its state" in error[1]


def refuse() -> Any:
    given: list[tuple[tuple[Any, ...], Any]] = [((3,), None), (({},), ({}, {}))]
    built = meshkit.build_mesh(dp=2)
    before = [error_of(partial(built.recovery.restore, *objects, held=h)) for objects, h in given]
    mesh = fail(built, step=3)
    after = [error_of(partial(mesh.recovery.restore, *objects, held=h)) for objects, h in given]
    return before, after


def test_objects_without_a_state_are_refused_also_before_the_first_recovery() -> None:
    for before, (without_state, other_number) in meshkit.spawn(refuse, 2, timeout=120):
        assert before == [without_state, other_number]
        assert without_state[0] == other_number[0] == "SpecError"
        assert "held has 2 objects, not 1." in other_number[1]


@pytest.mark.parametrize("value", [{1.5: 2}, {"a": {1, 2}}, [torch.zeros(2).to_sparse()], object()])
def test_values_of_other_types_are_named(value: object) -> None:
    with pytest.raises(SpecError, match="state"):
        to_local(value)


def test_a_state_is_equal_after_its_way_through_bytes() -> None:
    state = {"a": [1, 2.5, (None, "x")], 3: {"t": torch.arange(9)[2:4]}, "inf": float("inf")}
    content = io.BytesIO()
    torch.save(to_local(state), content)
    assert len(content.getvalue()) < 2000
    content.seek(0)
    received = from_local(torch.load(content, weights_only=True), {})
    assert repr(received) == repr(state)
