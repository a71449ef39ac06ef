"""The first batch of a sampler: ranks that read otherwise are named, and nobody waits."""

from __future__ import annotations

import pickle
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset

import meshkit
from meshkit.launch.store import Store
from tests.faults import error_of
from tests.pool import Pool

RANKS = 4
ODD = 3
SIZES = {"global_batch": 16, "micro_batch": 2}
WRONG: dict[str, tuple[dict[str, int], dict[str, Any], str]] = {
    "micro batch": ({**SIZES, "micro_batch": 4}, {}, "micro_batch"),
    "global batch": ({**SIZES, "global_batch": 32}, {}, "global_batch"),
    "seed": (SIZES, {"seed": 1}, "seed"),
    "length": (SIZES, {"length": 63}, "length"),
    "shuffle": (SIZES, {"shuffle": False}, "shuffle"),
    "tail": (SIZES, {"tail": "drop"}, "tail"),
}


def first_batch(mesh: meshkit.Mesh, sizes: dict[str, int] = SIZES, **options: Any) -> list[int]:
    length = options.pop("length", 64)
    order = {"shuffle": True, "seed": 7, **options}
    batch: list[int] = next(iter(mesh.sampler(length, mesh.batch(**sizes), **order)))
    return batch


def read_otherwise(name: str) -> list[Any]:
    """Return the error of the odd rank, those of the next agree and view, and the store calls."""
    sizes, options, _ = WRONG[name]
    claims: list[str] = []
    claim = Store.claim

    def count(store: Store, key: str, value: str, expected: str = "") -> bytes:
        claims.extend([key] * ("samplers" in store.path))
        return claim(store, key, value, expected)

    errors: list[Any] = []
    with meshkit.build_mesh(dp=2, tp=2) as mesh, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "claim", count, raising=True)
        assert len(first_batch(mesh)) == 2  # equal on all ranks
        mesh.barrier()
        if mesh.rank == ODD:
            mesh.barrier()  # the others read first
            with pytest.raises(meshkit.DisagreementError) as caught:
                first_batch(mesh, sizes, **options)
            errors.append((str(caught.value), dict(caught.value.requests)))
        else:
            first_batch(mesh)
            mesh.barrier()
        for compare in (lambda: mesh.agree("step", 3), lambda: mesh.view(dp=4)):
            with pytest.raises(meshkit.DisagreementError) as caught:
                compare()
            errors.append(str(caught.value))
    return [*errors, claims]


@pytest.mark.parametrize("name", WRONG)
def test_a_rank_that_reads_otherwise_is_named(pool: Pool, name: str) -> None:
    results = pool.run(read_otherwise, name)
    field = WRONG[name][2]
    text, requests = results[ODD][0]
    assert f"ranks read batches of another {field}" in text
    assert {ODD} < {*requests}
    assert len(requests) == 2
    assert all(f"{field}=" in request for request in requests.values())
    for result in results:
        *_, at_agree, at_view, claims = result
        assert claims == ["1", "2"]  # one operation for each sampler
        for error in (at_agree, at_view):
            assert error == results[0][-3 if error is at_agree else -2]
            assert f"rank {ODD}: " in error
            assert f"{field}=" in error


def read_alone() -> tuple[float, int]:
    """Let one rank read while the others wait for it elsewhere; return its seconds."""
    with meshkit.build_mesh(dp=2, tp=2) as mesh:
        sampler = mesh.sampler(64, mesh.batch(**SIZES))
        began = time.monotonic()
        if mesh.rank == ODD:
            next(iter(sampler))
        seconds = time.monotonic() - began
        mesh.barrier()
        mesh.agree("step", 1)  # ranks that read nothing take no part
        return seconds, len(list(sampler))


def test_the_first_batch_waits_for_nobody(pool: Pool) -> None:
    results = pool.run(read_alone)
    assert results[ODD][0] < 2
    assert {count for _, count in results} == {16}


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Any:
        yield from range(64)


def read_by_workers() -> list[Any]:
    results: list[Any] = []
    with meshkit.build_mesh(dp=2, tp=2) as mesh:
        plan = mesh.batch(**SIZES)
        loader = mesh.loader(torch.arange(64 + (mesh.rank == ODD)), plan)
        try:
            results.append([batch.tolist() for batch in loader])
        except meshkit.DisagreementError as error:
            results.append(error.summary)
        stream = mesh.loader(Numbers(), plan, num_workers=1)
        results.append(sum(len(batch) for batch in stream))
        again = pickle.loads(pickle.dumps(mesh.sampler(64, plan)))
        results.append(len(list(again)))
        odd = {**SIZES, "micro_batch": 4} if mesh.rank == ODD else SIZES
        try:
            next(iter(mesh.sampler(Numbers(), mesh.batch(**odd))))
            results.append("")
        except meshkit.DisagreementError as error:
            results.append(error.summary)
    return results


def test_loaders_and_streams_compare_too(pool: Pool) -> None:
    results = pool.run(read_by_workers)
    assert "another length" in results[ODD][0] or any("another length" in r[0] for r in results)
    named = [rank for rank, result in enumerate(results) if isinstance(result[0], str)]
    assert named  # the odd rank, or those that came after it
    assert all(result[1:3] == [32, 16] for result in results)
    assert any("another micro_batch" in result[3] for result in results)


def train_in_guard(timeout: float | None) -> str:
    """Return the text of the error of each rank, of which one has another seed."""
    meshkit.init(device="cpu", timeout=20)
    mesh = meshkit.build_mesh(dp=2, tp=2, timeout=3)
    sampler = mesh.sampler(64, mesh.batch(**SIZES), shuffle=True, seed=int(mesh.rank == ODD))
    if mesh.rank == ODD:
        time.sleep(1)  # the other ranks read first

    def train() -> None:
        with mesh.guard(timeout=timeout):
            for _ in sampler:
                dist.all_reduce(torch.ones(1), group=mesh.group("dp"))
                mesh.barrier()

    with pytest.raises(meshkit.DisagreementError) as caught:
        train()
    return str(caught.value)


@pytest.mark.parametrize("timeout", [2, None])
def test_inside_a_guard_all_ranks_raise_the_same_text(timeout: float | None) -> None:
    texts = meshkit.spawn(train_in_guard, RANKS, (timeout,), timeout=60)
    assert len({*texts}) == 1
    assert f"rank {ODD}: seed=1" in texts[0]
    assert "rank 0: seed=0" in texts[0] or "seed=0" in texts[0]


def load_in_guards() -> list[int]:
    """Return the first batches of samplers in guards that measure steps, and so post keys too."""
    with meshkit.build_mesh(dp=2, tp=2) as mesh:
        firsts = []
        for _ in range(2):
            with mesh.guard(timeout=60, stragglers=True):
                firsts.append(next(iter(mesh.sampler(64, mesh.batch(**SIZES)))))
        return [sample for first in firsts for sample in first]


def test_a_guard_that_measures_steps_may_hold_the_first_batch(pool: Pool) -> None:
    for rank, samples in enumerate(pool.run(load_in_guards)):
        own = [2 * (rank // 2), 2 * (rank // 2) + 1]
        assert samples == own * 2


class Mined:
    """An order by losses that one rank has measured otherwise from the second epoch on."""

    def __init__(self, is_odd: bool) -> None:
        self.is_odd, self.epoch = is_odd, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 32

    def __iter__(self) -> Any:
        return iter(range(32) if not (self.is_odd and self.epoch) else range(31, -1, -1))


def read_own_orders() -> Any:
    """Return what happens in the second epoch, and how many keys epochs add to the store."""
    counts: list[int] = []
    with meshkit.build_mesh(dp=2, tp=2) as mesh:
        plan = mesh.batch(**SIZES)
        store: Any = dist.group.WORLD.get_group_store()  # type: ignore[union-attr]
        sampler = mesh.sampler(32, plan, order=Mined(False))
        for _ in range(6):
            assert len(list(sampler)) == 8 * sampler.steps // 2
            dist.barrier()
            counts.append(store.num_keys())
            dist.barrier()
        wrong = mesh.sampler(32, plan, order=Mined(mesh.rank == ODD))
        list(wrong)  # equal in the first epoch
        mesh.barrier()
        if mesh.rank != ODD:
            next(iter(wrong))
        mesh.barrier()  # the odd rank reads after them
        summary = ""
        if mesh.rank == ODD:
            error = error_of(lambda: next(iter(wrong)))
            summary = error[1] if error else ""
        return summary, counts


def test_own_orders_are_compared_in_each_epoch_and_leave_nothing(pool: Pool) -> None:
    results = pool.run(read_own_orders)
    assert [bool(text) for text, _ in results] == [rank == ODD for rank in range(RANKS)]
    assert "another order" in results[ODD][0]
    for _, counts in results:
        assert counts[2:] == counts[2:3] * 4
