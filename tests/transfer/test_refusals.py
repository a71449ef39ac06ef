"""One rank cannot move its part of a state: no rank waits, all raise, and nothing has changed."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import nn

import meshkit
from tests.pool import Pool
from tests.promises import BUSY

RANKS = 4  # of the pool
WAIT = 3.0  # seconds in which all ranks have raised; messages and arrivals may take minutes
PATTERNS = {"w": "o/dp i -> o/tp i", "s": "o +dp -> o", "big": "o/dp i -> o/tp i"}


# ------------------------------------------------------------------ models of the same ranks


def shard(mesh: meshkit.Mesh, rows: int, value: float | None = None) -> dict[str, Any]:
    """Return the state of a layer that FSDP2 cuts over dp, its weight counted from a value."""
    from torch.distributed.fsdp import fully_shard

    model = nn.Linear(3, rows, bias=False)
    start = 0.0 if value is None else value
    model.weight.data = torch.arange(start, start + 3 * rows).reshape(rows, 3) * (value is not None)
    fully_shard(model, mesh=mesh.device_mesh("dp"))
    return dict(model.state_dict())


def move_between_models(rows: int, staged: bool, overlap: bool) -> None:
    ranks = [0, 1, 2] if overlap else range(4)
    source = meshkit.build_mesh(ranks=ranks, dp=len(ranks))
    target = meshkit.build_mesh(dp=4)
    with source, target:
        state = shard(source, rows, value=1.0) if source.inside else None
        out = shard(target, rows)
        more: Any = {"out": out} if source.inside else {}
        like = state or out
        pattern = {"weight": "o/dp i -> o/dp i"}
        sync = source.transfer(pattern, to=target, like=like, staged=staged, **more)
        for _ in range(2):
            result: Any = sync(state, out=out)
            assert result is out
            whole = torch.arange(1.0, 3 * rows + 1).reshape(rows, 3)
            assert torch.equal(out["weight"].full_tensor(), whole)
            with torch.no_grad():
                out["weight"].zero_()
        new: Any = sync(state)  # new tensors are cut as those of the plan
        assert new["weight"].shape == out["weight"].to_local().shape


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize(("rows", "overlap"), [(5, False), (9, False), (5, True), (2, True)])
def test_uneven_dtensors_move_between_models_of_the_same_ranks(
    pool: Pool, rows: int, staged: bool, overlap: bool
) -> None:
    pool.run(move_between_models, rows, staged, overlap)


def misfits() -> list[str]:
    """Return the errors of this rank if the tensors to fill do not fit."""
    source, target, texts = meshkit.build_mesh(dp=4), meshkit.build_mesh(dp=4), []
    pattern = {"*": "o/dp i -> o/dp i"}
    with source, target:
        state, began = shard(source, 5, value=1.0), time.monotonic()
        others: list[Any] = [shard(target, 9), {"other": torch.zeros(1)}, 3]
        for out in others:
            with pytest.raises(meshkit.MeshkitError) as raised:
                source.transfer(pattern, to=target, like=state, out=out)
            texts.append(f"{raised.type.__name__}: {raised.value}")
        sync = source.transfer(pattern, to=target, like=state)  # which says nothing of DTensors
        out = shard(target, 5)
        with pytest.raises(meshkit.MeshkitError, match=r"out=.*mesh.transfer|mesh.transfer.*out="):
            sync(state, out=out)
        assert time.monotonic() - began < WAIT + BUSY
        assert not out["weight"].to_local().any()
    return texts


def test_tensors_that_do_not_fit_are_refused_on_all_ranks_before_anything_moves(pool: Pool) -> None:
    by_rank = pool.run(misfits)
    shapes, names, kinds = by_rank[0]
    assert by_rank == [[shapes, names, kind[2]] for kind in by_rank]
    assert "o=5 i=3 on the source" in shapes
    assert "other: on the target alone." in names
    assert "out is 3" in kinds


# ------------------------------------------------------------------ a later call of a kept plan

Change = dict[str, Any]  # what one rank passes in place of its state, or of its tensors to fill
BAD: dict[str, Any] = {
    "None": None,
    "a text": "state",
    "no name": {},
    "None for a tensor": {"w": None},
    "a text for a tensor": {"w": "weight"},
    "sizes": {"w": torch.zeros(3, 5)},
    "dtype": {"w": torch.zeros(4, 6, dtype=torch.int32)},
    "sparse": {"w": torch.zeros(4, 6).to_sparse()},
    "expanded": {"w": torch.zeros(6).expand(4, 6)},  # a state may be
}


def spoil(state: dict[str, Any], kind: str) -> Any:
    bad = BAD[kind]
    if kind == "no name":
        return {name: tensor for name, tensor in state.items() if name != "w"}
    return {**state, **bad} if isinstance(bad, dict) else bad


def refuse(odd: int, kinds: list[str], staged: bool, begins: bool, guarded: bool) -> list[Any]:
    """Return the errors of this rank in moves in which one rank passes something wrong."""
    source, target = meshkit.build_mesh(ranks=[0, 1], dp=2), meshkit.build_mesh(ranks=[2, 3], tp=2)
    rank, mine, errors = source.rank, source if source.inside else target, []
    with source, target:
        state: Any = None
        if source.inside:
            state = {"w": torch.ones(4, 6), "s": torch.ones(5), "big": torch.ones(64, 64)}
        out: Any = None
        if target.inside:
            out = {"w": torch.zeros(4, 6), "s": torch.zeros(5), "big": torch.zeros(64, 64)}
        like = state or out
        options: Any = {"staged": staged, "chunk": 2**12}  # several batches
        sync = source.transfer(PATTERNS, to=target, like=like, **options)
        for kind in kinds:
            given = spoil(like, kind) if rank == odd else like
            arguments = (given, None) if source.inside else (None, given)
            began, guard = time.monotonic(), mine.guard(timeout=60 if guarded else None)
            try:
                with guard:
                    if begins:
                        sync.begin(arguments[0], out=arguments[1]).wait()
                    else:
                        sync(arguments[0], out=arguments[1])
                errors.append("none")
            except meshkit.MeshkitError as error:
                errors.append(f"{type(error).__name__}: {error}")
            assert time.monotonic() - began < WAIT + BUSY, (kind, errors[-1])
            assert not (out and any(tensor.any() for tensor in out.values()))
        sync(state, out=out)  # the plan is as good as before
        if out:
            assert (out["w"] == 1).all()
            assert (out["big"] == 1).all()
            assert (out["s"] == 2).all()
    return errors


@pytest.mark.parametrize(("staged", "begins"), [(False, False), (False, True), (True, False)])
@pytest.mark.parametrize(("odd", "guarded"), [(0, False), (1, True), (2, True), (3, False)])
def test_a_rank_that_refuses_a_later_call_tells_the_others(
    pool: Pool, odd: int, guarded: bool, staged: bool, begins: bool
) -> None:
    is_source = odd < 2
    kinds = [kind for kind in BAD if not (is_source and kind == "expanded")]
    if not is_source:
        kinds.remove("None")  # new tensors
    by_rank = pool.run(refuse, odd, kinds, staged, begins, guarded)
    for number, kind in enumerate(kinds):
        own = by_rank[odd][number]
        assert own.startswith("SpecError"), (kind, own)
        summary = own.splitlines()[0].partition("): ")[2]
        for rank in {*range(RANKS)} - {odd}:
            text = by_rank[rank][number]
            assert text.startswith("DisagreementError"), (kind, rank, text)
            assert f"rank {odd} " in text
            assert "gave up: SpecError" in text
            assert summary in text or kind == "a text", (summary, text)
