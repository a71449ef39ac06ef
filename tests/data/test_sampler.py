"""Samplers and streams: alone, and in torch's DataLoader on real ranks."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    default_collate,
    get_worker_info,
)

import meshkit
from meshkit import BatchError, BatchPlan, CoordinateError
from meshkit.data.epoch import Epoch
from meshkit.data.sampler import MicroBatchSampler, MicroBatchStream
from tests.faults import error_of


def sampler(length: int = 10, tail: str = "keep", **sizes: int) -> MicroBatchSampler:
    """Return the sampler of data coordinate 0 of 2, with a global batch of 4 by default."""
    plan = BatchPlan.solve(dp=2, **{"global_batch": 4, "micro_batch": 1, **sizes}, uneven=True)
    return MicroBatchSampler(Epoch(length, replace(plan, data_index=0), True, 1, tail))


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
    return MicroBatchStream(Counting(length), replace(plan, data_index=data_index))


def order_of(own_sampler: MicroBatchSampler, epoch: int) -> list[list[int]]:
    own_sampler.set_epoch(epoch)
    return [*own_sampler]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stream_that_splits_itself_by_worker_loses_no_sample(num_workers: int) -> None:
    plan = BatchPlan.solve(dp=2, global_batch=6, micro_batch=3)
    read = []
    for data_index in range(2):
        plan = replace(plan, data_index=data_index)
        own = MicroBatchStream(SplitByWorker(24), plan)
        loader = DataLoader(own, batch_size=None, collate_fn=list, num_workers=num_workers)
        batches = [*loader]
        assert batches == [*MicroBatchStream(Counting(24), plan)]
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
    # also after its end, until the next one begins
    assert (own_sampler.epoch, own_sampler.steps) == (0, 3)
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
    iter(own_sampler)
    assert own_sampler.epoch == 1  # every micro batch was yielded, though no more was requested


def test_the_consumed_samples_count_in_whole_steps() -> None:
    own_sampler, counts = sampler(), []
    assert own_sampler.state_dict() == own_sampler.state_dict(steps=0)  # before the first pass
    for _ in own_sampler:
        counts.append(own_sampler.state_dict()["consumed"])
    assert counts == [0, 4, 4, 8, 10]
    assert own_sampler.state_dict() == own_sampler.state_dict(steps=3)
    iter(own_sampler)
    state = own_sampler.state_dict()
    assert state == {**own_sampler.state_dict(steps=0), "epoch": 1, "consumed": 0}
    own_sampler.set_epoch(0)
    assert own_sampler.state_dict(steps=1) == {**own_sampler.state_dict(), "consumed": 4}


def test_resumed_at_every_step_by_other_plans() -> None:
    alone = BatchPlan(1, 1, 1, 1, data_index=0)
    order = [s for batch in MicroBatchSampler(Epoch(10, alone, True, 1)) for s in batch]
    for steps in range(4):
        saved = sampler().state_dict(steps=steps)
        resumed = MicroBatchSampler(Epoch(10, BatchPlan(1, 3, 3, 1, data_index=0), True, 1))
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


def test_a_stream_by_hand() -> None:
    assert [*stream(13)] == [[0, 1], [4, 5], [6, 7], [10, 11]]  # 12 begins a step that never ends
    # with fillers: 3 micro batches, dp 2
    assert [*stream(13, 1)] == [[2, 3], [2, 3], [8, 9], [8, 9]]
    assert [*stream(5)] == []
    assert [m.samples.tolist() for m in stream(13).micro_batches(1)] == [[6, 7], [10, 11]]


def test_a_stream_is_read_on_and_begins_again_with_its_epoch() -> None:
    own_sampler = stream(20)
    saved = own_sampler.state_dict(steps=2)
    assert saved == {"version": 1, "epoch": 0, "consumed": 12}
    own_sampler.load_state_dict(saved)
    own_sampler.set_epoch(0)
    assert [*own_sampler] == [[12, 13], [16, 17]]
    assert own_sampler.state_dict(steps=1)["consumed"] == 18
    own_sampler.set_epoch(0)  # it has been read: from its start now
    assert len([*own_sampler]) == 6
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


@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_on_real_ranks_and_resumed_on_another_mesh(workers: int) -> None:
    by_rank = meshkit.spawn(run_epochs, 4, (workers, length := 20, 2), timeout=120)
    numbers = [[number for number, _ in report] for report in by_rank]
    assert numbers == [[0, 1, 2, 2, 2, 0, 3]] * 4
    passes = []
    for place, (dp, sp) in enumerate([(2, 2)] * 3 + [(4, 1)]):
        steps = zip(*(report[place][1] for report in by_rank), strict=True)
        passes.append([ownership(list(rows), dp, sp) for rows in steps])
    sizes = [[len(step) for step in each] for each in passes]
    assert sizes == [[6, 6, 6, 2], [6, 6, 6, 2], [6, 6], [4, 4]]
    parts = (passes[0], passes[1], passes[2] + passes[3])
    first, second, third = ([s for step in own_sampler for s in step] for own_sampler in parts)
    for batches_read in (first, second, third):
        assert sorted(batches_read) == list(range(length))
    assert first != second != third
    alone = MicroBatchSampler(Epoch(length, BatchPlan(1, 20, 20, 1, data_index=0), True, 5))
    assert [first, second, third] == [batch for _ in range(3) for batch in alone]
    assert {str(report[4]) for report in by_rank} == {"(2, [2, 20])"}


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
                errors.append(type(error).__name__)
        plain = meshkit.BatchPlan.solve(dp=2, global_batch=4, micro_batch=1)
        errors.append(str([*mesh.sampler(range(4), plain)]))
        # a dataset of one sample, not a number
        own_sampler = mesh.sampler(torch.tensor([1000]), plain)
        assert len(own_sampler) == own_sampler.steps == 1
        shared = mesh.batch(global_batch=4, micro_batch=1, data=())  # all ranks read the same
        errors.append(str([*mesh.sampler(range(4), shared)]))
    return errors


def test_the_errors_of_mesh_sampler() -> None:
    first, second = meshkit.spawn(collect_refusals, 2, timeout=60)
    assert first[:-2] == ["UnknownAxisError", *["BatchError"] * 8, "CoordinateError"]
    assert second[:-2] == first[:-2]
    assert first[-2:] == ["[[0], [2]]", "[[0], [1], [2], [3]]"]
    assert second[-2:] == ["[[1], [3]]", "[[0], [1], [2], [3]]"]


# ---------------------------------------------------------------- loaders

SAMPLES = torch.arange(16)
PLAN = BatchPlan(2, 8, 2, 2, data_index=0)


class Blocks(Dataset[torch.Tensor]):
    """A dataset that accepts a list of indices, as datasets for ``batch_size=None`` do."""

    def __getitem__(self, index: Any) -> torch.Tensor:
        return SAMPLES[index]

    def __len__(self) -> int:
        return len(SAMPLES)


def blocks_sampler() -> MicroBatchSampler:
    return MicroBatchSampler(Epoch(16, PLAN))


def blocks_stream() -> MicroBatchStream[int]:
    return MicroBatchStream(Counting(16), PLAN)


WORKERS: list[dict[str, Any]] = [{}, {"num_workers": 2, "persistent_workers": True}]


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_batch_sampler_used_as_a_sampler_is_refused(drop_last: bool) -> None:
    loader = DataLoader(Blocks(), sampler=blocks_sampler(), batch_size=2, drop_last=drop_last)
    for _ in range(2):
        with pytest.raises(BatchError, match="batch_size=2"):
            next(iter(loader))


class SamplerOfTorchdata(BatchSampler):
    """A BatchSampler whose iterator is an object, as that of torchdata's StatefulDataLoader."""

    def __iter__(self) -> Any:
        return iter(IteratorOfTorchdata(self.sampler))


class IteratorOfTorchdata:
    def __init__(self, source: Any) -> None:
        self.items = iter(source)

    def __iter__(self) -> Any:
        return self.items


class ShardOfAccelerate(BatchSampler):
    """A BatchSampler that reads another one as such, as that of accelerate does."""

    def __init__(self, batch_sampler: Any) -> None:
        self.batch_sampler, self.drop_last, self.batch_size = batch_sampler, False, None

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def __iter__(self) -> Any:
        yield from self.batch_sampler


def test_batch_samplers_of_other_libraries() -> None:
    with pytest.raises(BatchError):
        iter(SamplerOfTorchdata(blocks_sampler(), 2, False))
    assert [*ShardOfAccelerate(blocks_sampler())] == [[0, 1], [4, 5], [8, 9], [12, 13]]


class DividesAgain(ShardOfAccelerate):
    """A BatchSampler that gives each rank a share, as that of accelerate does."""

    def __init__(self, batch_sampler: Any, num_processes: int) -> None:
        super().__init__(batch_sampler)
        self.num_processes = num_processes


class DividesStream(IterableDataset[Any]):
    """As the IterableDatasetShard of accelerate."""

    def __init__(self, dataset: Any, num_processes: int) -> None:
        self.dataset, self.num_processes = dataset, num_processes

    def __iter__(self) -> Iterator[Any]:
        return iter([*self.dataset][:: self.num_processes])


class WrapsSampler(DistributedSampler[Any]):
    """As the DistributedSamplerWrapper of catalyst and of Lightning."""

    def __init__(self, sampler: Any, num_replicas: int) -> None:
        super().__init__(sampler, num_replicas, 0)
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        batches = [*self.sampler]
        return (batches[index] for index in super().__iter__())


class Dispatches:
    """As the DataLoaderDispatcher of accelerate, which one rank reads for all."""

    def __init__(self, loader: DataLoader[Any], num_processes: int) -> None:
        self.base_dataloader, self.state = loader, SimpleNamespace(num_processes=num_processes)

    def __iter__(self) -> Any:
        yield from self.base_dataloader


DIVIDERS: dict[str, Callable[[int], Any]] = {
    "BatchSampler": lambda n: DataLoader(Blocks(), batch_sampler=DividesAgain(blocks_sampler(), n)),
    "stream": lambda n: DataLoader(DividesStream(blocks_stream(), n), batch_size=None),
    "sampler": lambda n: DataLoader(Blocks(), batch_sampler=WrapsSampler(blocks_sampler(), n)),
    "loader": lambda n: Dispatches(DataLoader(Blocks(), batch_sampler=blocks_sampler()), n),
    "loader of a stream": lambda n: Dispatches(DataLoader(blocks_stream(), batch_size=None), n),
}


@pytest.mark.parametrize("kind", DIVIDERS)
def test_a_share_of_a_rank_is_not_divided_over_ranks_again(kind: str) -> None:
    with pytest.raises(BatchError, match="over 2 ranks again") as caught:
        [*DIVIDERS[kind](2)]
    assert "accelerator.prepare" in caught.value.fix
    assert len([*DIVIDERS[kind](1)]) == 4


class SetsEpoch(Dispatches):
    """As that of accelerate, which sets the epoch on the ranks that do not read, too."""

    def __iter__(self) -> Any:
        self.base_dataloader.dataset.set_epoch(0)  # type: ignore[attr-defined]
        return iter(())


@pytest.mark.parametrize("context", ["fork", "forkserver"])
@pytest.mark.parametrize("kind", [Dispatches, SetsEpoch])
def test_a_stream_that_workers_read_is_not_divided_over_ranks_again(
    kind: type[Dispatches], context: str
) -> None:
    options: Any = {"num_workers": 1, "multiprocessing_context": context}
    loader: DataLoader[Any] = DataLoader(blocks_stream(), batch_size=None, **options)
    with pytest.raises(BatchError, match="over 2 ranks again"):
        [*kind(loader, 2)]


@pytest.mark.parametrize("options", WORKERS)
def test_the_right_loaders_read_as_before(options: dict[str, Any]) -> None:
    own = SAMPLES.view(-1, 2)[::2].tolist()
    loaders: list[DataLoader[Any]] = [
        DataLoader(Blocks(), batch_sampler=blocks_sampler(), **options),
        DataLoader(Blocks(), sampler=blocks_sampler(), batch_size=None, **options),
        DataLoader(blocks_stream(), batch_size=None, collate_fn=default_collate, **options),
    ]
    for loader in loaders:
        for _ in range(2):
            assert [batch.tolist() for batch in loader] == own


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("batch_size", [1, 2])
def test_a_stream_with_a_batch_size_is_refused(workers: int, batch_size: int) -> None:
    with pytest.raises(BatchError, match="batch_size=None would make batches of whole batches"):
        next(iter(DataLoader(blocks_stream(), batch_size=batch_size, num_workers=workers)))


def read(mesh: meshkit.Mesh, dataset: Any, **options: Any) -> tuple[list[Any], Any]:
    """Return the batches of two passes, and the position after the first step of the second."""
    plan = mesh.batch(global_batch=8, micro_batch=2)
    loader = mesh.loader(dataset, plan, **options)
    batches = [batch.tolist() for batch in loader] + [batch.tolist() for batch in loader]
    source: Any = loader.dataset if loader.batch_sampler is None else loader.batch_sampler
    state = source.state_dict(steps=1)
    rest = mesh.loader(dataset, plan, **options)
    resumed: Any = rest.dataset if rest.batch_sampler is None else rest.batch_sampler
    resumed.load_state_dict(state)
    return batches, [batch.tolist() for batch in rest]


def nested_in_workers() -> Any:
    """Return the error of a loader with workers, whose queues complain to stderr at its end."""
    loader = DataLoader(SAMPLES, sampler=blocks_sampler(), batch_size=2, **WORKERS[1])
    return (error_of(lambda: next(iter(loader))) or ("",))[0]


def load_on_ranks() -> dict[str, Any]:
    with meshkit.build_mesh(dp=2, sp=2) as mesh:
        plan = mesh.batch(global_batch=8, micro_batch=2)
        by_hand = DataLoader(SAMPLES, batch_sampler=mesh.sampler(SAMPLES, plan, shuffle=True))
        return {
            "nested": nested_in_workers() if mesh.rank == 0 else None,
            "workers": mesh.loader(SAMPLES, plan, **WORKERS[1]).num_workers,
            "plain": read(mesh, SAMPLES),
            "stream": read(mesh, Counting(16)),
            "shuffled": read(mesh, SAMPLES, shuffle=True)[0][:4],
            "by hand": [batch.tolist() for batch in by_hand],
            "summed": read(mesh, SAMPLES, collate_fn=lambda batch: sum(batch) + 0)[0][:4],
            "errors": [
                error_of(lambda: mesh.loader(SAMPLES, plan, batch_size=2)),
                error_of(lambda: mesh.loader(SAMPLES, plan, drop_last=True)),
                error_of(lambda: mesh.loader(16, plan)),
            ],
        }


def test_the_loader_reads_the_micro_batches_of_each_data_coordinate() -> None:
    by_rank = meshkit.spawn(load_on_ranks, 4, timeout=120)
    for rank, report in enumerate(by_rank):
        data_index = rank // 2  # ranks along sp share samples
        own = SAMPLES.view(-1, 2)[data_index::2].tolist()
        assert report["plain"] == ([*own, *own], own[2:])
        assert report["stream"] == ([*own, *own], own[2:])
        assert report["shuffled"] == report["by hand"]
        assert report["summed"] == [sum(pair) for pair in own]
    read_by_all = by_rank[0]["shuffled"] + by_rank[2]["shuffled"]
    assert sorted(sample for batch in read_by_all for sample in batch) == [*range(16)]
    assert by_rank[0].pop("nested") == "BatchError"
    assert by_rank[0]["workers"] == 2
    assert [error[0] for error in by_rank[0]["errors"]] == ["BatchError"] * 3


@pytest.mark.parametrize("options", WORKERS)
def test_a_stream_reads_what_its_state_says_in_every_pass(options: dict[str, Any]) -> None:
    """Workers that live on from pass to pass hold copies of the stream."""
    source = blocks_stream()
    loader = DataLoader(source, batch_size=None, **options)

    def read_all() -> list[int]:
        return [int(sample) for batch in loader for sample in batch]

    whole = [0, 1, 4, 5, 8, 9, 12, 13]
    state = source.state_dict(steps=1)
    source.load_state_dict(state)
    assert read_all() == whole[4:]
    source.set_epoch(1)
    assert read_all() == whole
    source.load_state_dict(state)
    assert read_all() == whole[4:]
