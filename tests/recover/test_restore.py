"""recovery.restore: states that differ by a step, and states that nobody holds."""

from __future__ import annotations

import copy
import io
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from enum import IntEnum
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.errors import SpecError
from meshkit.recover.restore import _update, from_local, to_local
from meshkit.testing.faults import Played, Strike, play
from tests.faults import error_of
from tests.newer_torch import needs_slices
from tests.promises import BUSY
from tests.redistribute.values import equal
from tests.scenarios.states import KINDS, Kind, begin_step, end_step, make
from tests.side_by_side import side_by_side

GUARD = 3.0
FSDP = Kind({"dp": 3}, "dp")
COLUMN = Kind({"dp": 2, "tp": 2}, "dp", "column")
HSDP = KINDS["hsdp"]


def lose_a_shard(strike: Strike) -> Any:
    """Lose a rank after three steps of FSDP2 over all axes, so that nobody holds its shards."""
    mesh, steps = meshkit.build_mesh(FSDP.sizes), 0
    held: Any = make(FSDP, mesh, 0)
    try:
        while True:
            with mesh.guard(timeout=GUARD):
                if mesh.rank == 1 and steps == 3:
                    strike.kill()
                end_step(held, begin_step(FSDP, held, mesh))
            steps += 1
    except meshkit.CollectiveError:
        mesh = mesh.recover(step=steps)
    mesh.recovery.restore(*make(FSDP, mesh, 7), held=held)


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
    "fsdp": lambda: play(lose_a_shard, 3, timeout=120),
    "lost": lambda: play(lose_a_part, 4, timeout=120),
}


@pytest.fixture(scope="module")
def played() -> Iterator[dict[str, Future[Played]]]:
    with side_by_side(JOBS, at_once=2) as results:
        yield results


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
    model = make(KINDS["ddp"], mesh, 0)[0]
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
    with mesh.guard(timeout=60):  # the number of messages differs between ranks, and is not counted
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


def restore_column_wise_shards() -> Any:
    """Restore shards over dp and tp on ranks that are a step behind; return the error."""
    mesh = meshkit.build_mesh(COLUMN.sizes)
    held = make(COLUMN, mesh, 0)
    mesh = fail(mesh, 1 if mesh.rank < 3 else 2)
    return error_of(lambda: mesh.recovery.restore(*make(COLUMN, mesh, 7), held=held))


@needs_slices
def test_shards_of_column_wise_layers_need_a_checkpoint() -> None:
    for kind, text in meshkit.spawn(restore_column_wise_shards, 4, timeout=120):
        assert kind == "MeshkitError"
        assert "is sharded over dp" in text


def take_the_shard_of_another_coordinate() -> Any:
    """Recover HSDP with shards, then give one rank the other shard; check before and after."""
    mesh = fail(meshkit.build_mesh(HSDP.sizes), 1)
    model, *_ = make(HSDP, mesh, 0)
    mesh.recovery.restore(model)
    mesh.check_parameters(model)
    if mesh.rank == 3:  # it is at shard=1
        whole = make(HSDP, None, 0)[0].state_dict()
        for name, parameter in model.named_parameters():
            with torch.no_grad():
                parameter.to_local().copy_(whole[name].chunk(2)[0])
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


VALUES: dict[str, Any] = {
    "numpy": {
        "float64": np.float64(0.25),
        "float32": np.float32(0.25),
        "int64": np.int64(7),
        "bool": np.bool_(True),
        "str": np.str_("a"),
        np.str_("key"): np.float64(1.5),
    },
    "tensors": {
        "nan": torch.tensor([float("nan"), 1.0]),
        "complex": torch.tensor([1 + 2j]),
        "conjugate": torch.tensor([1 + 2j, 3 - 1j]).conj(),
        "negative": torch._neg_view(torch.tensor([1.0, 2.0])),
        "bool": torch.tensor([True, False]),
        "0-dim": torch.tensor(3),
        "empty": torch.empty(0, 3),
        "transposed": torch.arange(6.0).view(2, 3).t(),
        "a slice": torch.arange(6.0)[2:4],
        "float8": torch.ones(3).to(torch.float8_e4m3fn),
        "parameter": torch.nn.Parameter(torch.ones(2)),
    },
    "dtypes": {"float": torch.tensor([1 / 3]), "int": torch.tensor([300])},
}


def restore_every_kind() -> list[str]:
    """Restore values of every kind on rank 1; return those that are wrong."""
    mesh = meshkit.build_mesh(dp=2)
    state = copy.deepcopy(VALUES)
    tied = torch.arange(3.0)
    state["tied"] = {"a": tied, "b": tied}
    if mesh.rank == 1:  # a step behind, with other numbers in the same memory
        state["numpy"] = dict.fromkeys(state["numpy"], 0)
        for tensor in state["tensors"].values():
            tensor.detach().zero_()
        tied.zero_()
        state["dtypes"] = {"float": torch.ones(1).half(), "int": torch.ones(1).byte()}
    before = dict(state["tensors"])
    mesh = fail(mesh, 2 - mesh.rank)
    mesh.recovery.restore(state)
    wrong = [name for name, x in VALUES["tensors"].items() if not equal(state["tensors"][name], x)]
    wrong += [name for name, x in VALUES["dtypes"].items() if not equal(state["dtypes"][name], x)]
    wrong += [name for name, x in before.items() if state["tensors"][name] is not x]
    wrong += [name for name, x in VALUES["numpy"].items() if state["numpy"][name] != x]
    return [*wrong, *(["tied"] * (not tied.equal(torch.arange(3.0))))]


def test_a_dict_takes_the_place_of_a_value_and_a_value_that_of_a_dict() -> None:
    target: dict[str, object] = {"inner": {"step": 1, "gone": 2}, "dict": {"a": 1}, "value": 3}
    inner = target["inner"]
    state = {"inner": {"step": 5}, "dict": 4, "value": {"b": 2}, "new": {"c": 1}}
    _update(target, state)
    assert target == state
    assert target["inner"] is inner


def test_values_of_every_kind_are_restored() -> None:
    assert meshkit.spawn(restore_every_kind, 2, timeout=120) == [[], []]


class Buffer(torch.nn.Module):
    """A module with an expanded buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(1, 2).expand(3, 2))
        self.weight = torch.nn.Parameter(torch.zeros(2))


def restore_into_shared_elements() -> list[Any]:
    """Return the errors of states that cannot be filled in place, and what they left."""
    mesh = meshkit.build_mesh(dp=2)
    first = torch.full((2,), float(mesh.rank))
    expanded = {"first": first, "nested": {"x": torch.zeros(2, 1).expand(2, 3)}}
    model = Buffer()
    mesh = fail(mesh, 2 - mesh.rank)
    errors = [error_of(partial(mesh.recovery.restore, thing)) for thing in (expanded, model)]
    return [*errors, first.tolist()]


def test_expanded_tensors_are_refused_on_all_ranks_before_anything_changes() -> None:
    results = meshkit.spawn(restore_into_shared_elements, 2, timeout=120)
    for rank, ((kind, text), (other, more), left) in enumerate(results):
        assert (kind, other) == ("SpecError", "SpecError")
        assert "state['nested']['x'] is expanded" in text
        assert "state['mask'] is expanded" in more
        assert left == [float(rank)] * 2


class Number(IntEnum):
    """A number of a type of its own, which ``weights_only`` refuses."""

    ONE = 1


class Broken:
    """An object of the user whose state cannot be read."""

    def state_dict(self) -> Any:
        """Raise, as after a wrong edit."""
        raise ZeroDivisionError("no state here")

    def load_state_dict(self, state: Any) -> None:
        """Load nothing."""


EXPANDED = torch.zeros(2, 1).expand(2, 3)
# a fault: the rank that it is on, its objects, held, and the kind of its error. Ranks 0 and 3 hold
# the state, and ranks 1 and 2 lack it.
FAULTS: dict[str, tuple[int, tuple[Any, ...], Any, str]] = {
    "a type on the sender": (0, ({"step": Number.ONE},), None, "SpecError"),
    "a set on the sender": (0, ({"step": {1}},), None, "SpecError"),
    "no state on the sender": (0, (3,), None, "SpecError"),
    "the sender holds None": (0, ({"step": 1},), (None,), "SpecError"),
    "another number of held": (0, ({"step": 1},), ({}, {}), "SpecError"),
    "an error of the user": (0, (Broken(),), None, "ZeroDivisionError"),
    "a receiver": (1, ({"step": 1, "x": EXPANDED},), None, "SpecError"),
    "the other receiver": (2, (Broken(),), None, "ZeroDivisionError"),
    "a rank that keeps a copy": (3, ({"step": object()},), ({"step": object()},), "SpecError"),
}


def restore_with_faults() -> Any:
    """Restore with each fault on one rank, then without; return kinds, seconds and the state."""
    mesh = meshkit.build_mesh(dp=4, timeout=60)
    rank = mesh.rank
    mesh = fail(mesh, (2, 1, 1, 2)[rank])
    state = {"step": rank, "x": torch.full((3,), float(rank))}
    kinds = {}
    for name, (on, objects, held, _) in FAULTS.items():
        given = (objects, held) if rank == on else ((state,), None)
        began = time.monotonic()
        try:
            mesh.recovery.restore(*given[0], held=given[1])
        except Exception as error:
            kinds[name] = type(error).__name__, str(error), time.monotonic() - began
    left = str(state)
    mesh.recovery.restore(state)
    dist.all_reduce(torch.ones(1))
    assert mesh.recovery.sources.by_rank.keys() == {1, 2}
    wanted = mesh.recovery.sources.by_rank.get(rank, rank)
    return kinds, left, str(state), str({"step": wanted, "x": torch.full((3,), float(wanted))})


def test_an_error_of_one_rank_is_raised_by_all_at_once_and_leaves_nothing_open() -> None:
    results = meshkit.spawn(restore_with_faults, 4, timeout=120)
    for rank, (kinds, left, state, wanted) in enumerate(results):
        assert kinds.keys() == FAULTS.keys()
        for name, (on, _, _, kind) in FAULTS.items():
            raised, text, seconds = kinds[name]
            assert raised == (kind if rank == on else "DisagreementError"), (name, text)
            assert rank == on or (f"rank {on} " in text and kind in text), (name, text)
            assert seconds < 3 + BUSY, name
        assert left == str({"step": rank, "x": torch.full((3,), float(rank))})
        assert state == wanted
