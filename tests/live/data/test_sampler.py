"""Samplers and streams: alone, and in torch's DataLoader on real ranks."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    default_collate,
    get_worker_info,
)

import meshkit
from meshkit import BatchError, BatchPlan, CoordinateError
from meshkit.core.data.epoch import Epoch
from meshkit.live.data.sampler import MicroBatchSampler
from meshkit.live.data.stream import MicroBatchStream


def sampler(length: int = 10, tail: str = "keep", **sizes: int) -> MicroBatchSampler:
    """Return the sampler of data coordinate 1 of 2, with a global batch of 4 by default."""
    plan = BatchPlan.solve(dp=2, **{"global_batch": 4, "micro_batch": 1, **sizes}, uneven=True)
    return MicroBatchSampler(Epoch(length, plan, 0, True, 1, tail))


class Counting(IterableDataset[int]):
    """The stream 0, 1, 2, ..."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        yield from range(self.length)


class SplitByWorker(Counting):
    """The same stream as torch's documentation writes it: each worker yields its own samples."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        yield from range(first, self.length, step)


def stream(length: int, data_index: int = 0) -> MicroBatchStream[int]:
    plan = BatchPlan.solve(dp=2, global_batch=6, micro_batch=2, uneven=True)
    return MicroBatchStream(Counting(length), plan, data_index, 0)


def order_of(own_sampler: MicroBatchSampler, epoch: int) -> list[list[int]]:
    own_sampler.set_epoch(epoch)
    return [*own_sampler]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stream_that_splits_itself_by_worker_loses_no_sample(num_workers: int) -> None:
    plan = BatchPlan.solve(dp=2, global_batch=6, micro_batch=3)
    read = []
    for data_index in range(2):
        own = MicroBatchStream(SplitByWorker(24), plan, data_index, 0)
        loader = DataLoader(own, batch_size=None, collate_fn=list, num_workers=num_workers)
        batches = [*loader]
        assert batches == [*MicroBatchStream(Counting(24), plan, data_index, 0)]
        read += [sample for batch in batches for sample in batch]
    assert sorted(read) == [*range(24)]


def test_each_pass_is_the_next_epoch() -> None:
    own_sampler, other = sampler(), sampler()
    passes = [[*own_sampler] for _ in range(3)]
    assert passes == [order_of(other, epoch) for epoch in range(3)]
    assert passes[0] != passes[1] != passes[2] != passes[0]
    assert all(len(batches_read) == len(own_sampler) == 5 for batches_read in passes)
    own_sampler.set_epoch(1)
    assert [*own_sampler] == passes[1]


def test_a_pass_equals_its_steps() -> None:
    own_sampler = sampler()
    batches_read = [
        m.samples.tolist()
        for step in range(own_sampler.steps)
        for m in own_sampler.micro_batches(step)
    ]
    assert [*own_sampler] == batches_read
    assert (own_sampler.epoch, own_sampler.steps) == (
        0,
        3,
    )  # also after its end, until the next one begins
    iter(own_sampler)
    assert own_sampler.epoch == 1


def test_a_pass_left_early_begins_again() -> None:
    own_sampler = sampler()
    first = [*zip(range(4), own_sampler, strict=False)]
    assert [*zip(range(4), own_sampler, strict=False)] == first
    assert own_sampler.epoch == 0
    whole = iter(own_sampler)
    for _ in range(len(own_sampler)):
        next(whole)
    assert (iter(own_sampler), own_sampler.epoch)[
        1
    ] == 1  # every micro batch was yielded, although the loader requested no more


def test_the_consumed_samples_count_in_whole_steps() -> None:
    own_sampler, counts = sampler(), []
    for _ in own_sampler:
        counts.append(own_sampler.state_dict()["consumed"])
    assert counts == [0, 4, 4, 8, 10]
    assert own_sampler.state_dict() == own_sampler.state_dict(steps=3)
    iter(own_sampler)
    assert own_sampler.state_dict() == {
        **own_sampler.state_dict(steps=0),
        "epoch": 1,
        "consumed": 0,
    }
    own_sampler.set_epoch(0)
    assert own_sampler.state_dict(steps=1) == {**own_sampler.state_dict(), "consumed": 4}


def test_an_abandoned_pass_changes_nothing() -> None:
    own_sampler = sampler()
    old = iter(own_sampler)
    new = iter(own_sampler)
    next(new), next(new)
    assert len([*old]) == 5
    assert (own_sampler.epoch, own_sampler.state_dict()["consumed"]) == (0, 4)


def test_resumed_at_every_step_by_other_plans() -> None:
    alone = BatchPlan.solve(dp=1, global_batch=1, micro_batch=1)
    order = [s for batch in MicroBatchSampler(Epoch(10, alone, 0, True, 1, "keep")) for s in batch]
    for steps in range(4):
        saved = sampler().state_dict(steps=steps)
        plan = BatchPlan.solve(dp=1, global_batch=3, micro_batch=3)
        resumed = MicroBatchSampler(Epoch(10, plan, 0, True, 1, "keep"))
        resumed.load_state_dict(saved)
        assert [s for batch in resumed for s in batch] == order[4 * steps :]
        assert resumed.epoch == 0
        assert len([*resumed]) == 4  # the whole of the next epoch
        assert resumed.epoch == 1


def test_a_loaded_position_survives_set_epoch_of_its_epoch_alone() -> None:
    saved = sampler().state_dict(steps=1)
    for epoch, left in ((0, 3), (1, 5)):
        own_sampler = sampler()
        own_sampler.load_state_dict(saved)
        own_sampler.set_epoch(epoch)
        assert len([*own_sampler]) == len(own_sampler) == left
    own_sampler = sampler()
    own_sampler.load_state_dict(saved)
    assert len([*own_sampler]) == 3
    own_sampler.set_epoch(0)  # it has been read: from its start now
    assert (len([*own_sampler]), own_sampler.epoch) == (5, 0)


def test_the_end_of_an_epoch_is_the_end_after_loading_too() -> None:
    own_sampler = sampler()
    own_sampler.load_state_dict(sampler().state_dict(steps=3))
    assert (len(own_sampler), own_sampler.steps, [*own_sampler], own_sampler.epoch) == (0, 0, [], 0)
    assert (len([*own_sampler]), own_sampler.epoch) == (5, 1)


def test_a_call_that_raises_changes_nothing() -> None:
    own_sampler = sampler()
    own_sampler.load_state_dict(own_sampler.state_dict(steps=1))
    before = own_sampler.state_dict()
    with pytest.raises(BatchError):
        own_sampler.load_state_dict(sampler(length=11).state_dict())
    for wrong in (-1, 1.0, True, None):
        with pytest.raises(CoordinateError):
            own_sampler.set_epoch(wrong)  # type: ignore[arg-type]
    for steps in (-1, 3, True):
        with pytest.raises(CoordinateError):
            own_sampler.state_dict(steps=steps)
    assert own_sampler.state_dict() == before


class Squares(Dataset[tuple[int, int]]):
    """Each sample with its square, so that a batch shows its samples."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, index * index


def collect_steps(sampler: Any, loader: DataLoader[Any], steps: int | None = None) -> Any:
    """Read one epoch as a trainer does; return the micro batches of each step."""
    batches, batches_read = iter(loader), []
    for step in range(sampler.steps if steps is None else steps):
        row = []
        for micro, (samples, squares) in zip(sampler.micro_batches(step), batches, strict=False):
            same = samples.tolist() == micro.samples.tolist()
            same = same and squares.tolist() == [s * s for s in samples.tolist()]
            row.append((micro.samples.tolist(), micro.weight, micro.is_filler, same))
        batches_read.append(row)
    return batches_read


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_that_reads_ahead(workers: int) -> None:
    """Two workers prefetch four micro batches, so they reach the end one step early."""
    data, own_sampler = Squares(10), sampler()
    loader: Any = DataLoader(data, batch_sampler=own_sampler, num_workers=workers)
    for epoch in range(2):
        rows = collect_steps(own_sampler, loader)
        assert own_sampler.epoch == epoch
        assert [len(row) for row in rows] == [2, 2, 1]
        assert all(same for row in rows for *_, same in row)


def test_a_stream_by_hand() -> None:
    assert [*stream(13)] == [[0, 1], [4, 5], [6, 7], [10, 11]]  # 12 begins a step that never ends
    assert [*stream(13, 1)] == [
        [2, 3],
        [2, 3],
        [8, 9],
        [8, 9],
    ]  # with fillers: 3 micro batches, dp 2
    assert [*stream(5)] == []
    assert [m.samples.tolist() for m in stream(13).micro_batches(1)] == [[6, 7], [10, 11]]


def test_a_stream_is_read_on_and_begins_again_with_its_epoch() -> None:
    own_sampler = stream(20)
    saved = own_sampler.state_dict(steps=2)
    assert saved == {"version": 1, "epoch": 0, "consumed": 12}
    own_sampler.load_state_dict(saved)
    for _ in range(2):
        own_sampler.set_epoch(0)
        assert [*own_sampler] == [[12, 13], [16, 17]]
    assert own_sampler.state_dict(steps=1)["consumed"] == 18
    own_sampler.set_epoch(1)
    assert next(iter(own_sampler)) == [0, 1]
    assert own_sampler.state_dict(steps=1) == {"version": 1, "epoch": 1, "consumed": 6}
    copy = pickle.loads(pickle.dumps(own_sampler))  # what a worker that is spawned gets
    assert [*copy] == [*own_sampler]


SIZES = {"global_batch": 6, "micro_batch": 1, "uneven": True}


def loader_options(workers: int) -> dict[str, Any]:
    """Return options of forked workers, as ranks of torchrun have; others import torch again."""
    context = {"multiprocessing_context": "fork"} if workers else {}
    return {"num_workers": workers, **context}


def run_epochs(workers: int, length: int, stop: int) -> Any:
    """Run two and a half epochs on one mesh, and the rest of the third on another."""
    data, report = Squares(length), []
    with meshkit.build_mesh(dp=2, sp=2) as mesh:
        sampler = mesh.sampler(data, mesh.batch(**SIZES), shuffle=True, seed=5)
        loader = DataLoader(data, batch_sampler=sampler, **loader_options(workers))
        assert len(loader) == len(sampler)
        for _ in range(2):  # without set_epoch
            rows = collect_steps(sampler, loader)
            report.append((sampler.epoch, rows))
        part = collect_steps(sampler, loader, stop)
        report.append((sampler.epoch, part))
        mesh.check_batch([torch.tensor(row[0][0]) for row in part])
        saved = json.dumps(sampler.state_dict(steps=stop))
    with meshkit.build_mesh(dp=4) as mesh:
        sampler = mesh.sampler(
            data, mesh.batch(**{**SIZES, "global_batch": 4}), shuffle=True, seed=5
        )
        sampler.load_state_dict(json.loads(saved))
        sampler.set_epoch(2)  # what a trainer does at the head of its loop
        loader = DataLoader(data, batch_sampler=sampler, **loader_options(workers))
        report.append((sampler.epoch, collect_steps(sampler, loader)))
        report.append((sampler.epoch, [len(sampler), sampler.state_dict()["consumed"]]))
        report.append((0, collect_steps(sampler, loader, 1)))
        report.append((sampler.epoch, None))
    return report


def read_stream(stream: Any, workers: int) -> list[list[int]]:
    loader: Any = DataLoader(
        stream, batch_size=None, collate_fn=default_collate, **loader_options(workers)
    )
    return [batch.tolist() for batch in loader]


def run_streams(workers: int, length: int) -> Any:
    """Read a stream on one mesh, and after two steps the rest on another."""
    report = []
    with meshkit.build_mesh(dp=2, sp=2) as mesh:
        stream = mesh.sampler(Counting(length), mesh.batch(**SIZES))
        report.append(read_stream(stream, workers))
        saved = stream.state_dict(steps=2)
    with meshkit.build_mesh(dp=4) as mesh:
        stream = mesh.sampler(Counting(length), mesh.batch(global_batch=4, micro_batch=1))
        stream.load_state_dict(saved)
        stream.set_epoch(0)
        report.append(read_stream(stream, workers))
        stream.set_epoch(1)
        report.append(read_stream(stream, workers))
    return report


def run_with_and_without_workers(name: str, *numbers: int) -> Any:
    """Run a job without workers, and with two."""
    job = {"epochs": run_epochs, "streams": run_streams}[name]
    return [job(workers, *numbers) for workers in (0, 2)]


@pytest.fixture(scope="module")
def streams() -> list[Any]:
    """Return the streams of each rank, without workers and with two."""
    return meshkit.spawn(run_with_and_without_workers, 4, ("streams", 23), timeout=120)


def ownership(rows: list[Any], dp: int, sp: int) -> list[int]:
    """Return the samples of a step in global order; ranks of one sp group see the same."""
    batches_read = []
    by_index = [rows[d * sp : (d + 1) * sp] for d in range(dp)]
    assert all(row == shared[0] for shared in by_index for row in shared)
    for column in zip(*(shared[0] for shared in by_index), strict=True):
        batches_read += [
            s for samples, _, filler, same in column if not filler and same for s in samples
        ]
    return batches_read


def test_epochs_on_real_ranks_and_resumed_on_another_mesh() -> None:
    both = meshkit.spawn(run_with_and_without_workers, 4, ("epochs", 20, 2), timeout=120)
    for workers in (0, 1):
        check_epochs(20, [reports[workers] for reports in both])


def check_epochs(length: int, by_rank: list[Any]) -> None:
    numbers = [[number for number, _ in report] for report in by_rank]
    assert numbers == [[0, 1, 2, 2, 2, 0, 3]] * 4
    passes = []
    for place, (dp, sp) in enumerate([(2, 2)] * 3 + [(4, 1)]):
        steps = zip(*(report[place][1] for report in by_rank), strict=True)
        passes.append([ownership(list(rows), dp, sp) for rows in steps])
    assert [[len(step) for step in own_sampler] for own_sampler in passes] == [[6, 6, 6, 2]] * 2 + [
        [6, 6],
        [4, 4],
    ]
    parts = (passes[0], passes[1], passes[2] + passes[3])
    first, second, third = ([s for step in own_sampler for s in step] for own_sampler in parts)
    for batches_read in (first, second, third):
        assert sorted(batches_read) == list(range(length))
    assert first != second != third
    plan = BatchPlan.solve(dp=1, global_batch=20, micro_batch=20)
    alone = MicroBatchSampler(Epoch(length, plan, 0, True, 5, "keep"))
    assert [first, second, third] == [batch for _ in range(3) for batch in alone]
    assert {str(report[4]) for report in by_rank} == {"(2, [2, 20])"}


@pytest.mark.parametrize("workers", [0, 1])
def test_streams_on_real_ranks_and_resumed_on_another_mesh(
    workers: int, streams: list[Any]
) -> None:
    by_rank = [reports[workers] for reports in streams]
    whole, resumed, again = zip(*by_rank, strict=True)
    assert whole[0] == whole[1] == [[s + d] for s in (0, 6, 12) for d in (0, 2, 4)]
    assert whole[2] == whole[3] == [[s + d] for s in (0, 6, 12) for d in (1, 3, 5)]
    assert resumed == tuple([[12 + d], [16 + d]] for d in range(4))  # 20 to 22 are no whole step
    assert again == tuple([[s + d] for s in range(0, 20, 4)] for d in range(4))


def collect_refusals() -> Any:
    """Return the errors of mesh.sampler."""
    errors: list[str] = []
    with meshkit.build_mesh(dp=2) as mesh:
        plan = mesh.batch(global_batch=4, micro_batch=2)
        other = meshkit.BatchPlan.solve(dp=4, global_batch=8, micro_batch=2)
        stream: Any = Counting(8)
        with mesh.view(shard=2) as view:
            others = view.batch(global_batch=4, micro_batch=2, data="shard")
        wrong = replace(plan, data_index=1 - mesh.coordinate["dp"])
        for ask in (
            lambda: mesh.sampler(8, others),
            lambda: mesh.sampler(8, wrong),
            lambda: mesh.sampler(stream, plan, seed=1),
            lambda: mesh.sampler(iter([1]), plan),
            lambda: mesh.sampler([1, 2, 3], plan, tail="drop"),
            lambda: mesh.sampler(8, other, shuffle=True),
            lambda: mesh.sampler(8, 3),  # type: ignore[call-overload]
            lambda: mesh.sampler(stream, plan, shuffle=True),
            lambda: mesh.sampler(stream, plan, tail="keep"),
            lambda: mesh.sampler(stream, plan).state_dict(steps=-1),
        ):
            try:
                ask()
            except meshkit.MeshkitError as error:
                errors.append(str(error))
        plain = meshkit.BatchPlan.solve(dp=2, global_batch=4, micro_batch=1)
        errors.append(str([*mesh.sampler(range(4), plain)]))
        own_sampler = mesh.sampler(
            torch.tensor([1000]), plain
        )  # a dataset of one sample, not a number
        assert len(own_sampler) == own_sampler.steps == 1
        shared = mesh.batch(global_batch=4, micro_batch=1, data=())  # all ranks read the same
        errors.append(str([*mesh.sampler(range(4), shared)]))
    return errors


def test_the_errors_of_mesh_sampler() -> None:
    zero, own_sampler = meshkit.spawn(collect_refusals, 2, timeout=60)
    assert zero[:-2] == own_sampler[:-2]
    assert zero[:-2] == [
        "mesh.sampler(8, plan): there is no axis 'shard'.\n"
        "  The axes are dp.\n"
        "  Fix: use one of dp.",
        "mesh.sampler(8, plan): the plan is of another mesh.\n"
        "  It divides the samples by 2; this mesh has dp=2.\n"
        "  Fix: mesh.batch(...).",
        "mesh.sampler(dataset, plan, seed=1): a stream is read in its own order.\n"
        "  Fix: leave out shuffle and seed, and shuffle in the dataset.",
        "mesh.sampler(dataset, plan): a list_iterator has no len().\n"
        "  A dataset that is read by index must have a length.\n"
        "  Fix: the number of samples, or a torch.utils.data.IterableDataset.",
        "mesh.sampler([1, 2, 3], plan, tail='drop'): 3 samples do not fill one step of 4.\n"
        "  Fix: tail='keep', or a global batch of at most 3.",
        "mesh.sampler(8, plan, shuffle=True): the plan is of another mesh.\n"
        "  It divides the samples by 4; this mesh has dp=2.\n"
        "  Fix: mesh.batch(...).",
        "mesh.sampler(8, plan): the plan is an int.\n"
        "  Fix: mesh.batch(...), or schedule.at(consumed).",
        "mesh.sampler(dataset, plan, shuffle=True): a stream is read in its own order.\n"
        "  Fix: leave out shuffle and seed, and shuffle in the dataset.",
        "mesh.sampler(dataset, plan, tail='keep'): tail is 'keep'.\n"
        "  The end of a stream is not known before, so only whole steps are read.\n"
        "  Fix: tail='drop'.",
        "stream.state_dict(steps=-1): steps is -1.\n  Fix: steps as an int, 0 or more.",
    ]
    assert (zero[-2:], own_sampler[-2:]) == (
        ["[[0], [2]]", "[[0], [1], [2], [3]]"],
        ["[[1], [3]]", "[[0], [1], [2], [3]]"],
    )
