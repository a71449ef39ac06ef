"""mesh.loader on real ranks, and the DataLoaders that would batch micro batches again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, default_collate

import meshkit
from meshkit import BatchError, BatchPlan
from meshkit.core.data.epoch import Epoch
from meshkit.live.data.sampler import MicroBatchSampler
from meshkit.live.data.stream import MicroBatchStream
from tests.live.faults import error_of

SAMPLES = torch.arange(16)
PLAN = BatchPlan.solve(dp=2, global_batch=8, micro_batch=2)


class Blocks(Dataset[torch.Tensor]):
    """A dataset that accepts a list of indices, as datasets for ``batch_size=None`` do."""

    def __getitem__(self, index: Any) -> torch.Tensor:
        return SAMPLES[index]

    def __len__(self) -> int:
        return len(SAMPLES)


class Counting(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(16))


def sampler() -> MicroBatchSampler:
    return MicroBatchSampler(Epoch(16, PLAN, 0, False, 0, "keep"))


def stream() -> MicroBatchStream[int]:
    return MicroBatchStream(Counting(), PLAN, 0, 0)


WORKERS: list[dict[str, Any]] = [{}, {"num_workers": 2, "persistent_workers": True}]


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_batch_sampler_used_as_a_sampler_is_refused(drop_last: bool) -> None:
    loader = DataLoader(Blocks(), sampler=sampler(), batch_size=2, drop_last=drop_last)
    for _ in range(2):
        with pytest.raises(BatchError) as error:
            next(iter(loader))
        assert str(error.value).endswith(
            "Fix: DataLoader(dataset, batch_sampler=sampler), or mesh.loader(dataset, plan)."
        )
        assert "DataLoader(sampler=..., batch_size=2) would make batches of" in str(error.value)


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
        iter(SamplerOfTorchdata(sampler(), 2, False))
    assert [*ShardOfAccelerate(sampler())] == [[0, 1], [4, 5], [8, 9], [12, 13]]


@pytest.mark.parametrize("options", WORKERS)
def test_the_right_loaders_read_as_before(options: dict[str, Any]) -> None:
    own = SAMPLES.view(-1, 2)[::2].tolist()
    loaders: list[DataLoader[Any]] = [
        DataLoader(Blocks(), batch_sampler=sampler(), **options),
        DataLoader(Blocks(), sampler=sampler(), batch_size=None, **options),
        DataLoader(stream(), batch_size=None, collate_fn=default_collate, **options),
    ]
    for loader in loaders:
        for _ in range(2):
            assert [batch.tolist() for batch in loader] == own


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("batch_size", [1, 2])
def test_a_stream_with_a_batch_size_is_refused(workers: int, batch_size: int) -> None:
    with pytest.raises(BatchError, match="batch_size=None would make batches of whole batches"):
        next(iter(DataLoader(stream(), batch_size=batch_size, num_workers=workers)))


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
    loader = DataLoader(SAMPLES, sampler=sampler(), batch_size=2, **WORKERS[1])
    return (error_of(lambda: next(iter(loader))) or ("",))[0]


def load() -> dict[str, Any]:
    with meshkit.build_mesh(dp=2, sp=2) as mesh:
        plan = mesh.batch(global_batch=8, micro_batch=2)
        by_hand = DataLoader(SAMPLES, batch_sampler=mesh.sampler(SAMPLES, plan, shuffle=True))
        return {
            "nested": nested_in_workers() if mesh.rank == 0 else None,
            "workers": mesh.loader(SAMPLES, plan, **WORKERS[1]).num_workers,
            "plain": read(mesh, SAMPLES),
            "stream": read(mesh, Counting()),
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
    by_rank = meshkit.spawn(load, 4, timeout=120)
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
    assert by_rank[0]["errors"] == [
        (
            "BatchError",
            "mesh.loader(dataset, plan, batch_size=2): batch_size is 2, and the plan decides which "
            "samples a batch holds.\n"
            "  Fix: leave out batch_size, or mesh.batch(micro_batch=...).",
        ),
        (
            "BatchError",
            "mesh.loader(dataset, plan, drop_last=True): drop_last is True, and the plan decides "
            "which samples a batch holds.\n"
            '  Fix: leave out drop_last, or mesh.loader(dataset, plan, tail="drop").',
        ),
        (
            "BatchError",
            "mesh.loader(dataset, plan): the dataset is an int, which has no samples.\n"
            "  Fix: a dataset; mesh.sampler(...) accepts a number of samples.",
        ),
    ]


@pytest.mark.parametrize("options", [{}, *WORKERS])
def test_a_stream_reads_what_its_state_says_in_every_pass(options: dict[str, Any]) -> None:
    """Workers that live on from pass to pass hold copies of the stream."""
    source = stream()
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
