"""Loops that other libraries and their users write, with samples that draw, on several meshes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from meshkit import BatchError, BatchPlan
from meshkit.data import draws
from meshkit.data.epoch import Epoch, shuffle_indices
from meshkit.data.loaders import make_loader
from meshkit.data.sampler import MicroBatchSampler
from meshkit.data.stream import MicroBatchStream

LENGTH, GLOBAL = 22, 4  # the last step has two samples
Sample = tuple[float, ...]
WORKERS = [(0, False), (2, False), (2, True)]


class Noisy(Dataset[Sample]):
    """Each sample is its index and the numbers that it draws."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Sample:
        return index, float(torch.rand(())), random.random(), float(np.random.rand())


class Quiet(Noisy):
    """Each sample is its index."""

    def __getitem__(self, index: int) -> Sample:
        return (index,)


class ReadsInside(Noisy):
    """Each sample reads other loaders and samplers before it draws for the last time."""

    def __getitem__(self, index: int) -> Sample:
        first = super().__getitem__(index)[:2]
        num_samples = sum(map(len, sampler_of(2)))
        return *first, len(samples(loader_of(2))), num_samples, random.random()


class Counting(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(LENGTH)


class Draws(Counting):
    def __iter__(self) -> Iterator[Any]:
        yield from (random.random() for _ in range(LENGTH))


@pytest.fixture(autouse=True)
def _restore_generators() -> Iterator[None]:
    before = draws._read_generators()
    yield
    draws._write_generators(before)


def plan_of(micro_batch: int, dp: int = 1, index: int = 0) -> BatchPlan:
    plan = BatchPlan.solve(dp=dp, global_batch=GLOBAL, micro_batch=micro_batch)
    return replace(plan, data_index=index)


def sampler_of(micro_batch: int, dp: int = 1, index: int = 0) -> MicroBatchSampler:
    return MicroBatchSampler(Epoch(LENGTH, plan_of(micro_batch, dp, index), shuffle=True, seed=3))


def loader_of(
    micro_batch: int,
    workers: tuple[int, bool] = (0, False),
    dataset: Any = None,
    kind: Any = DataLoader,
    at: tuple[int, int] = (1, 0),
) -> Any:
    """Return a loader of the data coordinate ``at`` of a mesh: its dp, and the index."""
    options: dict[str, Any] = {"num_workers": workers[0], "persistent_workers": workers[1]}
    options |= {"multiprocessing_context": "fork"} if workers[0] else {}
    sampler = sampler_of(micro_batch, *at)
    return kind(dataset or Noisy(), batch_sampler=sampler, collate_fn=list, **options)


def samples(batches: Any) -> list[Any]:
    return [sample for batch in batches for sample in batch]


def epochs(count: int) -> list[list[Sample]]:
    """Return the samples of some epochs, read one by one by one process."""
    loader = loader_of(1)
    read = [samples(loader) for _ in range(count)]
    positions = np.arange(LENGTH)
    orders = [shuffle_indices(positions, LENGTH, 3, epoch).tolist() for epoch in range(count)]
    assert [[index for index, *_ in epoch] for epoch in read] == orders
    return read


@pytest.mark.parametrize("workers", WORKERS)
def test_a_part_by_islice_then_the_rest_on_another_mesh_through_subsets(workers: Any) -> None:
    whole = epochs(2)
    first = loader_of(2, workers)
    read = samples(islice(first, 4))
    state = first.batch_sampler.state_dict(steps=2)
    nested, of_ranks = Subset(Subset(Noisy(), range(LENGTH)), range(LENGTH)), []
    for index in (0, 1):
        rest = loader_of(1, workers, nested, at=(2, index))
        rest.batch_sampler.load_state_dict(state)
        read += samples(rest)
        of_ranks += samples(rest)
    assert sorted(read) == sorted(whole[0])
    assert sorted(of_ranks) == sorted(whole[1])


@pytest.mark.parametrize("workers", WORKERS)
def test_validation_between_steps_changes_neither_samples_nor_the_trainers_numbers(
    workers: Any,
) -> None:
    def train(dataset: Any) -> tuple[list[Any], ...]:
        torch.manual_seed(1)
        random.seed(1)
        train_loader, validation = (loader_of(2, workers, dataset) for _ in range(2))
        trained, validated, own = [], [], []
        for number, batch in enumerate(train_loader):
            trained += batch
            own.append((float(torch.rand(())), random.random()))
            if number in (3, 7):
                validated += samples(islice(validation, 3))  # left early
        return trained, validated, own

    trained, validated, own = train(Noisy())
    (whole,) = epochs(1)
    assert trained == whole
    assert validated == whole[:6] * 2
    assert own == train(Quiet())[2]


@pytest.mark.parametrize("workers", WORKERS)
def test_an_endless_loop_and_loaders_that_are_zipped(workers: Any) -> None:
    def endless() -> Iterator[Any]:
        loader = loader_of(2, workers)
        while True:
            yield from loader

    whole = epochs(3)
    assert samples(islice(endless(), 30)) == samples(whole)[:60]
    pairs = [*zip(loader_of(2, workers), loader_of(2, workers), strict=True)]
    assert [samples(batches) for batches in zip(*pairs, strict=True)] == [whole[0]] * 2
    loader = loader_of(2)
    pairs = [*zip(iter(loader), iter(loader), strict=True)]  # both read one epoch
    assert [samples(batches) for batches in zip(*pairs, strict=True)] == [whole[0]] * 2
    assert samples(loader) == whole[1]


def test_a_dataset_that_reads_loaders_and_samplers_itself() -> None:
    whole = samples(loader_of(1, dataset=ReadsInside()))
    assert samples(loader_of(4, dataset=ReadsInside())) == whole
    assert [sample[:2] for sample in whole] == [sample[:2] for sample in epochs(1)[0]]
    assert {sample[2:4] for sample in whole} == {(LENGTH, LENGTH)}
    assert len({sample[4] for sample in whole}) == LENGTH


@pytest.mark.parametrize("workers", WORKERS)
def test_passes_of_a_stream_between_others_of_the_same_data(workers: Any) -> None:
    options: dict[str, Any] = {"num_workers": workers[0], "persistent_workers": workers[1]}
    options |= {"multiprocessing_context": "fork"} if workers[0] else {}

    def open_stream() -> Any:
        return make_loader(None, MicroBatchStream(Counting(), plan_of(2)), options)

    whole, trained, validated = [*range(20)], [], []
    train_loader, validation = open_stream(), open_stream()
    for number, batch in enumerate(train_loader):
        trained += batch.tolist()
        if number % 4 == 3:
            validated.append([int(sample) for sample in samples(validation)])
            validated.append([int(sample) for sample in samples(islice(validation, 3))])
    assert trained == whole
    assert validated == [whole, whole[:6]] * 2


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 calls it
@pytest.mark.parametrize("workers", [0, 2])
def test_the_stateful_loader_of_torchdata(workers: int) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    whole = epochs(2)
    for cut in (0, 2, 4, 10):  # whole steps of two micro batches
        loader = loader_of(2, (workers, False), kind=stateful)
        read = samples(islice(loader, cut))
        state = loader.state_dict()
        again = loader_of(2, (workers, False), kind=stateful)
        again.load_state_dict(state)
        assert [read + samples(again), samples(again)] == whole


@pytest.mark.parametrize("steps", [{}, {"steps": None}])
def test_a_stream_asks_for_the_steps_of_a_state(steps: Any) -> None:
    stream = MicroBatchStream(Counting(), plan_of(2))
    with pytest.raises(BatchError, match="how many steps") as caught:
        stream.state_dict(**steps)
    assert "steps=" in caught.value.fix


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("is_stream", [False, True])
def test_a_trainer_that_sets_the_epoch_of_its_loader(is_stream: bool, workers: int) -> None:
    """The Trainer of Transformers does so where it resumes between two epochs."""
    options = {"num_workers": workers, **({"multiprocessing_context": "fork"} if workers else {})}

    def begin() -> Any:
        if is_stream:
            return make_loader(None, MicroBatchStream(Draws(), plan_of(2)), options)
        return make_loader(Noisy(), sampler_of(2), options)

    loader = begin()
    whole = [str(samples(loader)) for _ in range(3)]
    resumed = begin()
    read = []
    for epoch in (1, 2):
        resumed.set_epoch(epoch)
        read.append(str(samples(resumed)))
    assert read == whole[1:]
    assert len({*whole}) == 3


@pytest.mark.parametrize("workers", WORKERS)
def test_a_loader_left_early_begins_again_whatever_workers_have_read(workers: Any) -> None:
    options: dict[str, Any] = {"num_workers": workers[0], "persistent_workers": workers[1]}
    options |= {"multiprocessing_context": "fork"} if workers[0] else {}
    whole = epochs(2)
    loader = make_loader(Noisy(), sampler_of(4), {**options, "collate_fn": list})  # 6 batches
    assert samples(islice(loader, 2)) == whole[0][:8]
    batches = iter(loader)
    assert len(batches) == len(loader) == 6
    assert [*next(batches), *next(batches)] == whole[0][:8]  # workers have read all by now
    assert [samples(loader), samples(loader)] == whole
    loader.batch_sampler.load_state_dict(loader.batch_sampler.state_dict(steps=4))
    assert samples(islice(loader, 1)) == whole[1][16:20]
    assert samples(loader) == whole[1][16:]
    assert loader.batch_sampler.epoch == 1
