"""Orders that a caller gives: each rank takes its share, and every state goes on with them."""

from __future__ import annotations

import json
import random
from collections import Counter, UserDict
from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import meshkit
from meshkit import BatchError, BatchPlan
from meshkit.data.epoch import SampleOrder
from meshkit.data.loaders import make_loader
from meshkit.data.sampler import MicroBatchSampler, make_source
from tests.faults import error_of

LENGTH = 24


class ByLength(Sampler[int]):
    """Samples of like lengths beside each other, in random groups, by one of the generators."""

    def __init__(self, draw: str, num_samples: int = LENGTH) -> None:
        self.draw, self.num_samples = draw, num_samples

    def __len__(self) -> int:
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        order = {
            "torch": lambda: torch.randperm(self.num_samples).tolist(),
            "numpy": lambda: np.random.permutation(self.num_samples).tolist(),
            "random": lambda: random.sample(range(self.num_samples), self.num_samples),
        }[self.draw]()
        groups = [sorted(order[i : i + 6], key=lambda n: n % 5) for i in range(0, len(order), 6)]
        return iter([index for group in groups for index in group])


class Curriculum:
    """The easy half in epoch 0, and more in each later epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return min(12 + 4 * self.epoch, LENGTH)

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))


ORDERS = {
    "weights": lambda: WeightedRandomSampler([1.0 + n for n in range(LENGTH)], 20),
    "weights of a generator": lambda: WeightedRandomSampler(
        [1.0] * LENGTH, 30, generator=torch.Generator()
    ),
    "shuffled": lambda: RandomSampler(range(LENGTH)),
    "a subset": lambda: SubsetRandomSampler([*range(3, 17)]),
    "by length, torch": lambda: ByLength("torch"),
    "by length, numpy": lambda: ByLength("numpy"),
    "by length, random": lambda: ByLength("random"),
    "curriculum": Curriculum,
    "a list": lambda: [5, 3, 3, 0, 23, 1, 2],
    "a tensor": lambda: torch.arange(LENGTH).flip(0),
    "an array": lambda: np.array([4, 4, 9], dtype=np.uint8),
    "a range": lambda: range(0, LENGTH, 3),
}


def sampler_of(order: Any, plan: BatchPlan, seed: int = 5, **options: Any) -> MicroBatchSampler:
    source = make_source(range(LENGTH), plan, SampleOrder(seed=seed, order=order, **options))
    assert isinstance(source, MicroBatchSampler)
    return source


def read_pass(samplers: list[MicroBatchSampler]) -> list[int]:
    """Return the samples of a pass of all data coordinates in global order, without fillers."""
    passes = [iter(each) for each in samplers]
    micros = [
        [micro for step in range(each.steps) for micro in each.micro_batches(step)]
        for each in samplers
    ]
    for batches, own in zip(passes, micros, strict=True):
        assert [*batches] == [micro.samples.tolist() for micro in own]
    return [
        int(sample)
        for micro_step in zip(*micros, strict=True)
        for micro in micro_step
        if not micro.is_filler
        for sample in micro.samples
    ]


def alone() -> BatchPlan:
    return BatchPlan(1, 1, 1, 1, data_index=0)


def all_of(order: str, plan: BatchPlan, **options: Any) -> list[MicroBatchSampler]:
    return [
        sampler_of(ORDERS[order](), replace(plan, data_index=index), **options)
        for index in range(plan.dp)
    ]


@st.composite
def plans(draw: st.DrawFn) -> BatchPlan:
    cuts, micro, dp = draw(st.integers(1, 5)), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    return BatchPlan.solve(dp=dp, global_batch=cuts * micro, micro_batch=micro, uneven=True)


def check_order(order: str, plan: BatchPlan, other: BatchPlan, epochs: int, part: float) -> None:
    """Compare all passes before and after a state with one rank that reads one sample a step."""
    one = sampler_of(ORDERS[order](), alone())
    reference = [[sample for (sample,) in one] for _ in range(epochs + 4)]
    samplers = all_of(order, plan)
    for epoch in range(epochs):
        assert read_pass(samplers) == reference[epoch]
    for each in samplers:
        iter(each)
    done = round(part * samplers[0].steps)
    states = {json.dumps(each.state_dict(steps=done), sort_keys=True) for each in samplers}
    assert len(states) == 1
    state = json.loads(states.pop())
    resumed = all_of(order, other)
    for each in resumed:
        each.load_state_dict(state)
    begin = min(done * plan.global_batch, len(reference[epochs]))
    for epoch in range(epochs, epochs + 4):
        assert read_pass(resumed) == reference[epoch][begin:]
        assert {each.epoch for each in resumed} == {epoch}
        begin = 0


@settings(deadline=None, max_examples=150, database=None)
@given(st.sampled_from([*ORDERS]), plans(), plans(), st.integers(0, 2), st.floats(0, 1))
def test_an_order_goes_on_from_every_state_on_another_mesh(
    order: str, plan: BatchPlan, other: BatchPlan, epochs: int, part: float
) -> None:
    check_order(order, plan, other, epochs, part)


@pytest.mark.nightly
@settings(deadline=None, max_examples=500, database=None)
@given(st.sampled_from([*ORDERS]), plans(), plans(), st.integers(0, 2), st.floats(0, 1))
def test_an_order_goes_on_from_every_state_on_another_mesh_500_times(
    order: str, plan: BatchPlan, other: BatchPlan, epochs: int, part: float
) -> None:
    check_order(order, plan, other, epochs, part)


def test_the_orders_are_what_their_samplers_mean() -> None:
    weights = [0.0] * 20 + [1.0] * 4
    own = sampler_of(WeightedRandomSampler(weights, 40), alone())
    passes = [[sample for (sample,) in own] for _ in range(2)]
    assert all({*each} == {20, 21, 22, 23} and len(each) == 40 for each in passes)
    assert passes[0] != passes[1]
    other_seed = sampler_of(WeightedRandomSampler(weights, 40), alone(), seed=6)
    assert [sample for (sample,) in other_seed] != passes[0]
    for draw in ("torch", "numpy", "random"):
        by_length = [sample for (sample,) in sampler_of(ByLength(draw), alone())]
        assert sorted(by_length) == [*range(LENGTH)] != by_length
        groups = [by_length[i : i + 6] for i in range(0, LENGTH, 6)]
        assert all(group == sorted(group, key=lambda n: n % 5) for group in groups)
    grown = sampler_of(Curriculum(), alone())
    assert [(len([*grown]), grown.epoch) for _ in range(4)] == [(12, 0), (16, 1), (20, 2), (24, 3)]
    fixed = sampler_of([5, 3, 3, 0], alone(), tail="pad")
    assert [[*fixed] for _ in range(2)] == [[[5], [3], [3], [0]]] * 2


def test_an_order_leaves_the_generators_of_the_caller_alone() -> None:
    generator = torch.Generator().manual_seed(3)
    order = WeightedRandomSampler([1.0] * LENGTH, LENGTH, generator=generator)
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(1)  # type: ignore[operator]
    expected = torch.rand(3).tolist(), np.random.rand(), random.random()
    own = torch.rand(3, generator=torch.Generator().manual_seed(3)).tolist()
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(1)  # type: ignore[operator]
    for each in (order, ByLength("numpy"), ByLength("random")):
        source = sampler_of(each, alone())
        assert [*source] != [*source]
    assert (torch.rand(3).tolist(), np.random.rand(), random.random()) == expected
    assert torch.rand(3, generator=generator).tolist() == own


def test_a_state_of_another_order_is_refused() -> None:
    own = sampler_of(ORDERS["weights"](), alone())
    saved = own.state_dict(steps=2)
    wrong: dict[str, tuple[Any, str]] = {
        "another seed": (sampler_of(ORDERS["weights"](), alone(), seed=6), "seed=5"),
        "other weights": (sampler_of(WeightedRandomSampler([1.0] * LENGTH, 20), alone()), "order="),
        "none": (make_source(range(20), alone(), SampleOrder()), "order="),
    }
    for name, (sampler, fix) in wrong.items():
        before = sampler.state_dict(steps=0)
        with pytest.raises(BatchError) as caught:
            sampler.load_state_dict(saved)
        assert fix in (caught.value.fix_text or ""), name
        assert sampler.state_dict(steps=0) == before
    plain = make_source(range(20), alone(), SampleOrder())
    with pytest.raises(BatchError) as caught:
        sampler_of([*range(20)], alone()).load_state_dict(plain.state_dict(steps=0))
    assert "without order=" in (caught.value.fix_text or "")


class OwnState(ByLength):
    """A sampler that draws from a generator of its own, which goes on from pass to pass."""

    def __init__(self) -> None:
        super().__init__("numpy")
        self.random = np.random.default_rng(0)

    def __iter__(self) -> Iterator[int]:
        return iter(self.random.permutation(self.num_samples).tolist())


class Endless(Sampler[int]):
    """A sampler without a length, as detection libraries have."""

    def __iter__(self) -> Iterator[int]:
        while True:
            yield 0


class Batches(Sampler[list[int]]):
    """A sampler of batches of two lengths."""

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[0, 1], [2]])


DATA = TensorDataset(torch.arange(LENGTH))
NO_ORDERS: dict[str, Any] = {
    "a generator": (n for n in range(LENGTH)),
    "an iterator": iter([1, 2]),
    "a sampler without a length": Endless(),
    "a batch sampler": BatchSampler(RandomSampler(DATA), 2, False),
    "batches of two lengths": Batches(),
    "batches of one length": [[0, 1], [2, 3]],
    "the share of one rank": DistributedSampler(DATA, num_replicas=2, rank=0),
    "a loader": DataLoader(DATA),
    "a dataset": DATA,
    "a str": "012",
    "a list of strs": ["0", "1"],
    "a dict": {0: 1, 1: 0},
    "a set": {0, 1},
    "a number": 5,
    "a class": RandomSampler,
    "floats": [0.0, 1.0],
    "weights": [1.0] * LENGTH,
    "a mask": [True, False],
    "a mask as a tensor": torch.ones(LENGTH, dtype=torch.bool),
    "nothing": [],
    "one number as a tensor": torch.tensor(3),
    "an index outside": [0, LENGTH],
    "a negative index": [0, -1],
    "an order of its own state": OwnState(),
    "another sampler of micro batches": MicroBatchSampler,
}


@pytest.mark.parametrize("kind", [*NO_ORDERS])
def test_what_is_no_order_is_refused(kind: str) -> None:
    plan = BatchPlan(1, 2, 2, 1, data_index=0)
    order = NO_ORDERS[kind]
    if order is MicroBatchSampler:
        order = make_source(range(LENGTH), plan, SampleOrder())
    with pytest.raises(BatchError) as caught:
        sampler_of(order, plan)
    assert caught.value.evidence
    assert caught.value.fix_text


@pytest.mark.parametrize(
    ("kind", "fix"),
    [
        ("floats", "indices from 0 to"),
        ("weights", f"indices from 0 to {LENGTH - 1}; or order=WeightedRandomSampler("),
        ("a list of strs", "indices from 0 to"),
        ("nothing", "indices from 0 to"),
        ("an index outside", "indices from 0 to"),
        ("a mask", "numpy.flatnonzero(mask)"),
        ("batches of one length", "a sampler of single samples"),
        ("batches of two lengths", "a sampler of single samples"),
    ],
)
def test_the_fix_of_an_order_is_for_its_kind(kind: str, fix: str) -> None:
    with pytest.raises(BatchError) as caught:
        sampler_of(NO_ORDERS[kind], alone())
    assert (caught.value.fix_text or "").startswith(fix)


def test_an_order_and_a_shuffle_are_refused() -> None:
    with pytest.raises(BatchError):
        sampler_of([1, 2], alone(), shuffle=True)
    with pytest.raises(BatchError):
        make_source(Stream(), alone(), SampleOrder(order=[1, 2]))


# ---------------------------------------------------------------- datasets


class Stream(IterableDataset[int]):
    """A stream of three samples."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def stream_of_a_rank() -> Any:
    return make_source(Stream(), alone(), SampleOrder())


class Labelled:
    """A series of pandas: ``series[3]`` is not the fourth item, but that with the label 3."""

    iloc = ()

    def __len__(self) -> int:
        return 4

    def __getitem__(self, label: int) -> int:
        return label


NO_DATASETS: dict[str, Any] = {
    "a loader": DataLoader(DATA),
    "a sampler": RandomSampler(DATA),
    "a batch sampler": BatchSampler(RandomSampler(DATA), 2, False),
    "a sampler of micro batches": make_source(range(4), alone(), SampleOrder()),
    "a stream of one rank": stream_of_a_rank(),
    "a str": "train.csv",
    "bytes": b"abc",
    "a dict": {"train": DATA},
    "a dict-like": UserDict(train=DATA),
    "another dict-like": MappingProxyType({"train": DATA}),
    "a table": Labelled(),
    "keys": {"a": 1}.keys(),
    "a set": {1, 2},
    "a pair of tensors": (torch.zeros(8, 2), torch.zeros(8)),
    "a model": torch.nn.Sequential(torch.nn.Linear(1, 1)),
    "a generator": (n for n in range(4)),
    "a function": len,
    "a class": TensorDataset,
    "a float": 8.0,
    "a bool": True,
    "a tensor of no dim that is no number": torch.tensor(8.0),
    "an array of no dim that is no number": np.array("abc"),
    "nothing": None,
}


class Rows(Dataset[int]):
    """A dataset that passes unknown attributes on to its table, as an index of labels."""

    iloc = ()

    def __init__(self) -> None:
        self.table = Labelled()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.table, name)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


class Forwarding:
    """No Dataset of torch, but the same."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index

    def __getattr__(self, name: str) -> Any:
        return getattr(Labelled(), name)


@pytest.mark.parametrize(
    "dataset", [Rows(), Forwarding(), MappingProxyType({1: "b", 0: "a", 2: "c", 3: "d"})]
)
def test_a_dataset_around_a_table_and_a_mapping_from_numbers_are_read(dataset: Any) -> None:
    sampler = make_source(dataset, alone(), SampleOrder())
    assert sorted(index for batch in sampler for index in batch) == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", [*NO_DATASETS])
def test_what_is_no_dataset_is_refused(kind: str) -> None:
    with pytest.raises(BatchError) as caught:
        make_source(NO_DATASETS[kind], alone(), SampleOrder())
    assert caught.value.evidence
    assert caught.value.fix_text


@pytest.mark.parametrize(
    "dataset",
    [
        DATA,
        [1, 2],
        range(3),
        torch.zeros(3, 2),
        torch.tensor([1000]),
        np.zeros(3),
        np.int64(4),
        4,
        torch.tensor(2),
    ],
)
def test_datasets_and_numbers_of_samples_are_accepted(dataset: Any) -> None:
    length = len(dataset) if hasattr(dataset, "__getitem__") and np.shape(dataset) else int(dataset)
    source: Any = make_source(dataset, alone(), SampleOrder())
    assert len(source) == length


# ---------------------------------------------------------------- real ranks


def read_on_ranks(part: int) -> Any:
    """Read an epoch and a part on one mesh, and the rest and an epoch on another."""
    report: list[Any] = []
    torch.manual_seed(100 + meshkit.init().rank)  # other generators on each rank
    weights = [1.0 + n for n in range(LENGTH)]
    with meshkit.build_mesh(dp=2, sp=2) as mesh:
        plan = mesh.batch(global_batch=4, micro_batch=2)
        loader: Any = mesh.loader(DATA, plan, order=WeightedRandomSampler(weights, 20), seed=3)
        report.append([batch.tolist() for (batch,) in loader])
        batches = iter(loader)
        report.append([next(batches)[0].tolist() for _ in range(part)])
        state = loader.batch_sampler.state_dict(steps=part)
        other = mesh.sampler(DATA, plan, order=torch.arange(LENGTH).roll(mesh.coordinate["dp"]))
        mesh.barrier()
        first, second = mesh.sampler(4, plan, order=[0, 1, 2, 3]), other
        next(iter(first))
        report.append(error_of(lambda: next(iter(second))))
    with meshkit.build_mesh(dp=4) as mesh:
        plan = mesh.batch(global_batch=4, micro_batch=1)
        loader = mesh.loader(
            DATA,
            plan,
            order=WeightedRandomSampler(weights, 20),
            seed=3,
            num_workers=1,
            multiprocessing_context="fork",
        )
        loader.batch_sampler.load_state_dict(state)
        for _ in range(2):
            report.append([batch.tolist() for (batch,) in loader])
    return report


def test_ranks_share_an_order_and_resume_it_on_another_mesh() -> None:
    by_rank = meshkit.spawn(read_on_ranks, 4, (2,), timeout=120)
    one = sampler_of(WeightedRandomSampler([1.0 + n for n in range(LENGTH)], 20), alone(), seed=3)
    reference = [[sample for (sample,) in one] for _ in range(3)]
    first, second = by_rank[0], by_rank[2]
    assert by_rank[1][:2] == first[:2]
    assert by_rank[3][:2] == second[:2]

    def join(*shares: list[list[int]]) -> list[int]:
        return [s for row in zip(*shares, strict=True) for batch in row for s in batch]

    assert join(first[0], second[0]) == reference[0]
    assert join(first[1], second[1]) == reference[1][:8]
    assert join(*(report[3] for report in by_rank)) == reference[1][8:]
    assert join(*(report[4] for report in by_rank)) == reference[2]
    errors = [report[2] for report in by_rank]
    assert Counter(error and error[0] for error in errors)["DisagreementError"] in (1, 2, 3)


class HandMade:
    """A batch sampler of the user's own."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[0, 1], [2, 3]])


WEIGHTS = WeightedRandomSampler([1.0] * 12, 12)
BY_DP: dict[str, Any] = {"num_replicas": 2, "rank": 0}
PLAN_OF_PAIRS = replace(BatchPlan.solve(dp=2, global_batch=4, micro_batch=2), data_index=0)

# options of DataLoader that the plan decides, and the fix, which keeps what they mean
DECIDED: dict[str, tuple[dict[str, Any], str]] = {
    "weights": ({"sampler": WEIGHTS}, "mesh.loader(dataset, plan, order=sampler)."),
    "indices": ({"sampler": [1, 0]}, "mesh.loader(dataset, plan, order=sampler)."),
    "no sampler": ({"sampler": None}, "leave out sampler."),
    "a shuffled share": (
        {"sampler": DistributedSampler(range(12), **BY_DP)},
        "mesh.loader(dataset, plan, shuffle=True).",
    ),
    "a share": (
        {"sampler": DistributedSampler(range(12), **BY_DP, shuffle=False)},
        "mesh.loader(dataset, plan).",
    ),
    "batches of weights": (
        {"batch_sampler": BatchSampler(WEIGHTS, 2, drop_last=False)},
        "mesh.loader(dataset, plan, order=batch_sampler.sampler).",
    ),
    "batches of a share": (
        {"batch_sampler": BatchSampler(DistributedSampler(range(12), **BY_DP), 2, drop_last=False)},
        "mesh.loader(dataset, plan, shuffle=True).",
    ),
    "batches by hand": (
        {"batch_sampler": HandMade()},
        "order=..., which yields single samples; the plan makes the batches.",
    ),
    "no batches": ({"batch_sampler": None}, "leave out batch_sampler."),
    "the last batch": ({"drop_last": True}, 'mesh.loader(dataset, plan, tail="drop").'),
    "no last batch": ({"drop_last": False}, "leave out drop_last."),
    "a batch size": ({"batch_size": 4}, "leave out batch_size, or mesh.batch(micro_batch=...)."),
}


@pytest.mark.parametrize("name", DECIDED)
def test_the_fix_of_an_option_keeps_what_it_means(name: str) -> None:
    options, fix = DECIDED[name]
    source = make_source(range(12), PLAN_OF_PAIRS, SampleOrder())
    with pytest.raises(BatchError) as caught:
        make_loader(range(12), source, options)
    assert caught.value.fix == fix
    assert " at 0x" not in str(caught.value)


def test_a_loader_of_a_mesh_is_named_if_it_gets_a_sampler_of_the_mesh() -> None:
    source = make_source(range(12), PLAN_OF_PAIRS, SampleOrder(shuffle=True))
    with pytest.raises(BatchError, match=r"Fix: DataLoader\(dataset, batch_sampler=sampler\)\."):
        make_loader(range(12), source, {"batch_sampler": source})


@pytest.mark.parametrize("option", ["sampler", "batch_sampler"])
def test_a_stream_gets_no_order_by_an_option(option: str) -> None:
    stream = make_source(Stream(), PLAN_OF_PAIRS, SampleOrder())
    with pytest.raises(BatchError, match=f"Fix: leave out {option}, and shuffle in the dataset"):
        make_loader(Stream(), stream, {option: WEIGHTS})
