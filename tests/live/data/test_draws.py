"""Random numbers of a dataset follow the reading of a sample, not the rank, worker or model."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

import meshkit
from meshkit.live.data import draws
from meshkit.live.data.draws import Draws, SampleIndices

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


def test_numbers_go_on_when_the_indices_are_dropped_or_ended(outer: Any) -> None:
    before = draws._read_generators()
    expected = [drawn() for _ in range(3)]
    draws._write_generators(before)
    got = [drawn()]
    indices = indices_of(3, 5).begin()
    for _ in indices:
        drawn()
        break
    del indices
    got.append(drawn())
    held = indices_of(3, 5).begin()
    held.end()
    held.end()
    got.append(drawn())
    del held
    assert got == expected


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
