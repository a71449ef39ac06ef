"""Random numbers of a dataset follow the reading of a sample, not the rank, worker or model."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
)

import meshkit
from meshkit import BatchPlan
from meshkit.data import draws
from meshkit.data.draws import Draws, SampleIndices
from meshkit.data.epoch import Epoch
from meshkit.data.sampler import MicroBatchSampler
from meshkit.data.stream import MicroBatchStream

LENGTH = 16
REPEATED = [3, 3, 3, 5, 5, 3, 3, 3, 3, 5]  # an order with replacement, whose last step is short


def drawn() -> tuple[float, float, float]:
    """Return a number of each generator."""
    return float(torch.rand(())), random.random(), float(np.random.rand())


class Augmented(Dataset[Any]):
    """Each sample is its index with the numbers that it draws."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        return index, drawn(), drawn()


class Whole(Augmented):
    """The samples of a batch are read together."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        indices = [*indices]
        numbers = [(drawn(), drawn()) for _ in indices]
        return [(index, *pair) for index, pair in zip(indices, numbers, strict=True)]


class Silent(Augmented):
    """The samples draw nothing."""

    def __getitem__(self, index: int) -> Any:
        return index, (), ()


class Stream(IterableDataset[Any]):
    """A stream in an order that it draws, with numbers of each sample."""

    def __iter__(self) -> Iterator[Any]:
        order = [*range(LENGTH)]
        random.shuffle(order)
        for index in order:
            yield index, drawn(), drawn()


def with_noise(batch: list[Any]) -> Any:
    """Collate, and draw as a collator that masks tokens does."""
    return [*batch, drawn()]


def feed(loader: Any) -> tuple[list[Any], list[Any]]:
    """Return the batches of one pass, and what a model draws between them from a known state."""
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    rows = [(batch, F.dropout(torch.ones(8), 0.5).tolist(), drawn()) for batch in loader]
    return [batch for batch, *_ in rows], [*(masks for _, *masks in rows), drawn()]


def read_in_every_way() -> dict[str, Any]:
    """Return the batches of each kind of loader, and the dropout of a model that they feed.

    A DataLoader with workers takes seconds to start, so there are few of them.
    """
    meshkit.init(seed=0)
    report: dict[str, Any] = {}
    masks: dict[str, Any] = {}
    with meshkit.build_mesh(dp=2, tp=2) as mesh:
        plan = mesh.batch(global_batch=8, micro_batch=2)

        def read(name: str, loader: Any) -> None:
            report[name], drawn_between = feed(loader)
            masks[name] = drawn_between

        def sampler(dataset: Any, epoch: int = 0) -> Any:
            return mesh.sampler(dataset, plan, shuffle=True, seed=1, epoch=epoch)

        def plain(dataset: Any, epoch: int = 0, workers: int = 0) -> Any:
            order: Any = sampler(dataset, epoch)
            return DataLoader(
                dataset, batch_sampler=order, num_workers=workers, collate_fn=with_noise
            )

        options: dict[str, Any] = {"shuffle": True, "seed": 1, "collate_fn": with_noise}
        read("each", mesh.loader(Augmented(), plan, **options))
        read("each, torch", plain(Augmented()))
        options |= {"num_workers": 2, "persistent_workers": True}
        workers = mesh.loader(Augmented(), plan, **options)
        read("each, workers", workers)
        read("each, second epoch, workers", workers)
        read("each, second epoch", plain(Augmented(), epoch=1))
        read("whole", plain(Whole()))
        read("whole, workers", plain(Whole(), workers=2))
        read("subset", plain(Subset(Augmented(), range(8))))
        read("silent", plain(Silent()))
        options = {"order": REPEATED, "collate_fn": with_noise}
        read("repeated", mesh.loader(Augmented(), plan, **options))
        read("repeated, workers", mesh.loader(Augmented(), plan, num_workers=1, **options))
        padded = {"tail": "pad", "collate_fn": with_noise}
        read("padded", mesh.loader(Subset(Augmented(), range(10)), plan, **padded))
        stream = mesh.loader(Stream(), plan, collate_fn=with_noise)
        read("stream", stream)
        read("stream, second epoch", stream)
        read("stream, workers", mesh.loader(Stream(), plan, num_workers=2, collate_fn=with_noise))
        again = sampler(Augmented())
        again.load_state_dict(sampler(Augmented(), epoch=1).state_dict(steps=1))
        rest = DataLoader(Augmented(), batch_sampler=again, collate_fn=with_noise)
        report["resumed"] = [*rest]
        return {"at": mesh.coordinate, "masks": masks, "batches": report}


@pytest.fixture(scope="module")
def reports() -> list[dict[str, Any]]:
    return meshkit.spawn(read_in_every_way, 4, timeout=300)


def numbers_by_sample(batches: list[Any]) -> dict[int, Any]:
    return {index: pair for *samples, _ in batches for index, *pair in samples}


def test_numbers_agree_along_tp_and_differ_along_dp(reports: list[dict[str, Any]]) -> None:
    by_dp = [[r["batches"] for r in reports if r["at"]["dp"] == dp] for dp in (0, 1)]
    assert all(first == second for first, second in by_dp)
    for name in by_dp[0][0].keys() - {"silent", "repeated", "repeated, workers", "padded"}:
        samples = [numbers_by_sample(batches[name]).values() for batches, _ in by_dp]
        numbers = [{*map(str, each)} for each in samples]
        assert not numbers[0] & numbers[1], name
        assert list(map(len, numbers)) == list(map(len, samples)), name
        noise = [{str(batch[-1]) for batch in batches[name]} for batches, _ in by_dp]
        assert not noise[0] & noise[1], name


def test_numbers_do_not_depend_on_the_number_of_workers(reports: list[dict[str, Any]]) -> None:
    for batches in (report["batches"] for report in reports):
        with_workers = [name for name in batches if name.endswith(", workers")]
        assert len(with_workers) == 5
        for name in with_workers:
            assert batches[name] == batches[name.removesuffix(", workers")], name


def test_torchs_own_loader_draws_as_mesh_loader_does(reports: list[dict[str, Any]]) -> None:
    for batches in (report["batches"] for report in reports):
        assert batches["each"] == batches["each, torch"]
        assert len(batches["each"]) == LENGTH // 2 // 2


def test_epochs_draw_other_numbers(reports: list[dict[str, Any]]) -> None:
    for batches in (report["batches"] for report in reports):
        for name in ("each", "stream"):
            epochs = [batches[name], batches[f"{name}, second epoch"]]
            numbers = [{*map(str, numbers_by_sample(e).values())} for e in epochs]
            assert not numbers[0] & numbers[1]


def test_a_resumed_pass_goes_on_with_the_numbers_of_its_epoch(
    reports: list[dict[str, Any]],
) -> None:
    for batches in (report["batches"] for report in reports):
        assert batches["resumed"] == batches["each, second epoch"][2:]


def test_the_model_draws_as_if_the_dataset_drew_nothing(reports: list[dict[str, Any]]) -> None:
    masks = reports[0]["masks"]
    assert all(report["masks"] == masks for report in reports)
    differing = {name for name, row in masks.items() if row != masks["silent"]}
    # these are shorter or longer; and torch draws no seed for workers that live on
    short = {"subset", "repeated", "repeated, workers"}
    assert differing == {*short, "each, second epoch, workers"}


def read_on_one_rank() -> Any:
    meshkit.init(seed=0)
    with meshkit.build_mesh(dp=1) as mesh:
        plan = mesh.batch(global_batch=8, micro_batch=4)
        loader = mesh.loader(Augmented(), plan, shuffle=True, seed=1, collate_fn=with_noise)
        stream = mesh.loader(Stream(), plan, collate_fn=with_noise)
        again = mesh.loader(Augmented(), plan, order=REPEATED, collate_fn=with_noise)
        padded = mesh.loader(
            Subset(Augmented(), range(10)), plan, tail="pad", collate_fn=with_noise
        )
        return [*loader], [*stream], [*again], [*padded]


def test_one_process_draws_the_same_numbers(reports: list[dict[str, Any]]) -> None:
    ((batches, stream, again, padded),) = meshkit.spawn(read_on_one_rank, 1, timeout=60)
    expected, of_stream = numbers_by_sample(batches), numbers_by_sample(stream)
    assert len(expected) == len(of_stream) == LENGTH
    merged, merged_stream = dict[int, Any](), dict[int, Any]()
    for batches_of_rank in (report["batches"] for report in reports):
        merged |= numbers_by_sample(batches_of_rank["each"])
        merged_stream |= numbers_by_sample(batches_of_rank["stream"])
    assert merged == expected
    assert merged_stream == of_stream
    for name, whole in (("repeated", again), ("padded", padded)):
        assert readings(report["batches"][name] for report in reports) == readings([whole]), name


def readings(ranks: Iterable[list[Any]]) -> set[str]:
    """Return each sample that some ranks read, with the numbers that it drew."""
    return {str(sample) for batches in ranks for *samples, _ in batches for sample in samples}


def test_a_sample_that_is_read_twice_in_an_epoch_draws_other_numbers(
    reports: list[dict[str, Any]],
) -> None:
    of_name = {
        name: readings(r["batches"][name] for r in reports) for name in ("repeated", "padded")
    }
    assert {name: len(read) for name, read in of_name.items()} == {"repeated": 10, "padded": 16}
    numbers = {read.partition(",")[2] for read in of_name["repeated"]}
    assert len(numbers) == 10
    for rank in reports:
        noise = [batch[-1] for batch in rank["batches"]["repeated"]]
        assert len({*noise}) == len(noise)


# ---------------------------------------------------------------- in one process


@pytest.fixture
def outer() -> Iterator[Any]:
    """Restore the generators after a test, and yield a function that returns their next numbers."""
    before = draws._read_generators()
    yield drawn
    draws._write_generators(before)


def indices_of(*indices: int, seed: int = 0, epoch: int = 0) -> SampleIndices:
    return SampleIndices([*indices], Draws(seed, 0, epoch), 0)


def test_indices_are_a_list_that_draws_nothing_by_itself(outer: Any) -> None:
    before = draws._read_generators()
    indices = indices_of(3, 5)
    assert indices == [3, 5]
    assert [*indices] == [3, 5]
    assert type(indices[:]) is list
    copied = copy.deepcopy(indices)
    assert copied == indices
    del indices, copied
    assert str(draws._read_generators()) == str(before)


def test_numbers_go_on_after_the_samples_are_read(outer: Any) -> None:
    before = draws._read_generators()
    expected = [drawn() for _ in range(4)]
    draws._write_generators(before)
    got, indices = [drawn()], indices_of(3, 5)
    with indices.active(range(6)):
        for _ in indices:
            drawn()
            break
    got.append(drawn())
    with pytest.raises(ZeroDivisionError), indices_of(3, 5).active(range(6)):
        raise ZeroDivisionError
    got.append(drawn())
    assert [*indices] == [3, 5]  # which somebody kept
    got.append(drawn())
    assert got == expected


class Keeping(Augmented):
    """The dataset keeps the indices that it has read."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def __getitems__(self, indices: list[int]) -> list[Any]:
        self.kept.append(indices)
        return [self[index] for index in indices]


@pytest.mark.parametrize("inner", [Keeping, Augmented])
def test_a_dataset_that_keeps_its_indices_leaves_the_numbers_of_the_trainer(
    inner: Any, outer: Any
) -> None:
    loader: Any = DataLoader(inner(), batch_sampler=sampler_of(LENGTH, 4), collate_fn=list)
    for _ in range(2):
        batches = iter(loader)
        before = draws._read_generators()
        expected = [drawn() for _ in range(4)]
        draws._write_generators(before)
        assert [drawn() for _ in batches] == expected


class Broken(Augmented):
    """One sample cannot be read."""

    def __getitem__(self, index: int) -> Any:
        drawn()
        if index == 2:
            raise ZeroDivisionError
        return index


def read_broken() -> bool:
    with meshkit.build_mesh(dp=1) as mesh:
        loader = mesh.loader(Broken(), mesh.batch(global_batch=2, micro_batch=2))
        torch.manual_seed(0)
        batches = iter(loader)
        next(batches)
        before = torch.get_rng_state()
        with pytest.raises(ZeroDivisionError):
            next(batches)
        return torch.equal(before, torch.get_rng_state())


def test_after_an_error_of_a_sample_the_numbers_of_the_trainer_go_on() -> None:
    assert meshkit.spawn(read_broken, 1, timeout=60) == [True]


class Lazy(Augmented):
    """The samples of a batch are read together, one index after the other."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


def turned(dataset: Any) -> Any:
    return Subset(dataset, [*reversed(range(len(dataset)))])


NESTED: dict[str, Callable[[], Any]] = {
    "subset of a subset": lambda: turned(turned(Augmented())),
    "four subsets": lambda: turned(turned(turned(turned(Augmented())))),
    "subsets of a dataset that reads one by one": lambda: turned(turned(Lazy())),
    "subset of a dataset that reads one by one": lambda: turned(Lazy()),
    "concatenation of subsets": lambda: ConcatDataset([turned(turned(Augmented()))] * 2),
    "subset of a concatenation": lambda: turned(turned(ConcatDataset([Augmented()] * 2))),
    "stack": lambda: StackDataset(Augmented(), turned(Augmented())),
    "stack of subsets": lambda: StackDataset(a=turned(turned(Lazy())), b=turned(Augmented())),
    "subset of a stack": lambda: turned(turned(StackDataset(Augmented(), Augmented()))),
}


def sampler_of(length: int, micro_batch: int, dp: int = 1, index: int = 0) -> MicroBatchSampler:
    plan = BatchPlan.solve(dp=dp, global_batch=8, micro_batch=micro_batch)
    return MicroBatchSampler(Epoch(length, replace(plan, data_index=index), shuffle=True, seed=1))


def read_samples(dataset: Any, sampler: Any, workers: int = 0) -> list[Any]:
    options: dict[str, Any] = {"multiprocessing_context": "fork"} if workers else {}
    loader: Any = DataLoader(
        dataset, batch_sampler=sampler, collate_fn=list, num_workers=workers, **options
    )
    return [sample for batch in loader for sample in batch]


@pytest.mark.parametrize("kind", NESTED)
def test_nested_datasets_draw_by_position_with_any_micro_batch_mesh_and_workers(
    kind: str, outer: Any
) -> None:
    dataset = NESTED[kind]()
    length = len(dataset)
    single = read_samples(dataset, sampler_of(length, 1))
    for workers in (0, 1):
        assert read_samples(dataset, sampler_of(length, 4), workers) == single
    of_ranks = [read_samples(dataset, sampler_of(length, 2, 2, index)) for index in (0, 1)]
    assert sorted(map(str, of_ranks[0] + of_ranks[1])) == sorted(map(str, single))
    numbers = re.findall(r"0\.\d+", str(single))
    assert len({*numbers}) == len(numbers)
    assert "__getitems__" not in vars(dataset)


class Skipping(BatchSampler):
    """A BatchSampler around another one, as that of accelerate's ``skip_first_batches``."""

    def __init__(self, sampler: Any) -> None:
        self.batch_sampler = sampler

    def __len__(self) -> int:
        return len(self.batch_sampler) - 1

    def __iter__(self) -> Iterator[list[int]]:
        for number, indices in enumerate(self.batch_sampler):
            if number:
                yield indices


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sampler_inside_another_one_draws_the_same_numbers(workers: int, outer: Any) -> None:
    whole = read_samples(Augmented(), sampler_of(LENGTH, 4))
    before = draws._read_generators()
    assert read_samples(Augmented(), Skipping(sampler_of(LENGTH, 4)), workers) == whole[4:]
    if not workers:  # for workers, torch draws a seed
        draws._write_generators(before)
        read_samples(Silent(), Skipping(sampler_of(LENGTH, 4)))
        after = drawn()
        draws._write_generators(before)
        read_samples(Augmented(), Skipping(sampler_of(LENGTH, 4)))
        assert drawn() == after


@pytest.mark.parametrize("workers", [0, 2])
def test_torchs_own_loader_of_a_stream_collates_with_numbers_of_the_micro_batch(
    workers: int, outer: Any
) -> None:
    noise = []
    options: dict[str, Any] = {"multiprocessing_context": "fork"} if workers else {}
    for index in (0, 1):
        plan = BatchPlan.solve(dp=2, global_batch=8, micro_batch=2)
        stream = MicroBatchStream(Stream(), replace(plan, data_index=index))
        loader: Any = DataLoader(
            stream, batch_size=None, collate_fn=with_noise, num_workers=workers, **options
        )
        for _ in range(2):
            torch.manual_seed(0)  # as on all ranks after init(seed=0)
            noise += [batch[-1] for batch in loader]
            after = float(torch.rand(()))
    assert len({*noise}) == len(noise) == 2 * 2 * 4
    if not workers:
        torch.manual_seed(0)
        torch.empty((), dtype=torch.int64).random_()  # the base seed of a DataLoader
        assert after == float(torch.rand(()))


class Accelerator:
    """A stand-in for ``torch.cuda``, whose numbers come from a generator of the cpu."""

    def __init__(self) -> None:
        self.generator, self.is_used = torch.Generator(), True
        self.manual_seed = self.generator.manual_seed
        self.get_rng_state, self.set_rng_state = self.generator.get_state, self.generator.set_state

    def is_initialized(self) -> bool:
        return self.is_used

    def rand(self) -> float:
        return float(torch.rand((), generator=self.generator))


class OnDevice(Augmented):
    """The samples draw on an accelerator."""

    def __init__(self, device: Accelerator) -> None:
        self.device = device

    def __getitem__(self, index: int) -> Any:
        return index, self.device.rand()


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Accelerator:
    module = Accelerator()
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    return module


def test_numbers_of_an_accelerator_follow_positions_too(device: Accelerator, outer: Any) -> None:
    dataset = OnDevice(device)
    single = read_samples(dataset, sampler_of(LENGTH, 1))
    device.manual_seed(5)
    expected = [device.rand() for _ in range(4)]
    device.manual_seed(5)
    loader: Any = DataLoader(dataset, batch_sampler=sampler_of(LENGTH, 4), collate_fn=list)
    got, read = [], []
    for batch in loader:
        read += batch
        got.append(device.rand())
    assert read == single
    assert got == expected


def test_an_accelerator_that_was_not_used_is_left_alone(device: Accelerator, outer: Any) -> None:
    device.is_used = False
    before = device.get_rng_state()
    read_samples(Augmented(), sampler_of(LENGTH, 4))
    assert torch.equal(before, device.get_rng_state())
