"""What the ranks of test_data and test_check_batch run. No pytest here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

import meshkit

SIZES = {"global_batch": 6, "micro_batch": 1, "uneven": True}


class Squares(Dataset[tuple[int, int]]):
    """A sample and its square, so that a batch tells which samples are in it."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, index * index


class Counting(IterableDataset[int]):
    """0, 1, 2, ..."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        yield from range(self.length)


def steps_of(sampler: Any, loader: DataLoader[Any], steps: int | None = None) -> Any:
    """A pass as a trainer makes it: per step, each batch with the micro batch it belongs to."""
    batches, found = iter(loader), []
    for step in range(sampler.steps if steps is None else steps):
        row = []
        for micro, (samples, squares) in zip(sampler.micro_batches(step), batches, strict=False):
            same = samples.tolist() == micro.samples.tolist()
            same = same and squares.tolist() == [s * s for s in samples.tolist()]
            row.append((micro.samples.tolist(), micro.weight, micro.is_filler, same))
        found.append(row)
    return found


def forked(workers: int) -> dict[str, Any]:
    """Workers as torchrun's ranks start them; those of ``spawn`` would import torch again."""
    context = {"multiprocessing_context": "fork"} if workers else {}
    return {"num_workers": workers, **context}


def both(name: str, *numbers: int) -> Any:
    """A job without workers, and with two."""
    job = {"epochs": epochs, "streams": streams}[name]
    return [job(workers, *numbers) for workers in (0, 2)]


def epochs(workers: int, length: int, stop: int) -> Any:
    """Two epochs and a half on one mesh, the rest of the third on another."""
    data, report = Squares(length), []
    with meshkit.build_mesh(dp=2, sp=2) as mesh:
        sampler = mesh.sampler(data, mesh.batch(**SIZES), shuffle=True, seed=5)
        loader = DataLoader(data, batch_sampler=sampler, **forked(workers))
        assert len(loader) == len(sampler)
        for _ in range(2):  # without set_epoch
            rows = steps_of(sampler, loader)
            report.append((sampler.epoch, rows))
        part = steps_of(sampler, loader, stop)
        report.append((sampler.epoch, part))
        mesh.check_batch([torch.tensor(row[0][0]) for row in part])
        saved = json.dumps(sampler.state_dict(steps=stop))
    with meshkit.build_mesh(dp=4) as mesh:
        sampler = mesh.sampler(
            data, mesh.batch(**{**SIZES, "global_batch": 4}), shuffle=True, seed=5
        )
        sampler.load_state_dict(json.loads(saved))
        sampler.set_epoch(2)  # what a trainer does at the head of its loop
        loader = DataLoader(data, batch_sampler=sampler, **forked(workers))
        report.append((sampler.epoch, steps_of(sampler, loader)))
        report.append((sampler.epoch, [len(sampler), sampler.state_dict()["consumed"]]))
        report.append((0, steps_of(sampler, loader, 1)))
        report.append((sampler.epoch, None))
    return report


def streams(workers: int, length: int) -> Any:
    """A stream on one mesh, and what is left of it after two steps on another."""
    report = []
    with meshkit.build_mesh(dp=2, sp=2) as mesh:
        stream = mesh.sampler(Counting(length), mesh.batch(**SIZES))
        report.append(stream_of(stream, workers))
        saved = stream.state_dict(steps=2)
    with meshkit.build_mesh(dp=4) as mesh:
        stream = mesh.sampler(Counting(length), mesh.batch(global_batch=4, micro_batch=1))
        stream.load_state_dict(saved)
        stream.set_epoch(0)
        report.append(stream_of(stream, workers))
        stream.set_epoch(1)
        report.append(stream_of(stream, workers))
    return report


def stream_of(stream: Any, workers: int) -> list[list[int]]:
    loader: Any = DataLoader(stream, batch_size=None, collate_fn=default_collate, **forked(workers))
    return [batch.tolist() for batch in loader]


def batch_of(name: str, rank: int, dp: int) -> Any:
    """A batch by the name of a case; ``dp`` is the data coordinate."""
    tokens = torch.arange(8).view(2, 4) + 100 * dp
    cases: dict[str, Any] = {
        "good": {"x": tokens, "m": [tokens.bool(), (1.5, "a", b"b", None, True)], "e": {}},
        "order": dict([("a", tokens), ("b", 1)][:: 1 if rank % 2 else -1]),
        "strided": {"x": (tokens.T.contiguous().T if rank % 2 else tokens)[:, ::2]},
        "bfloat16": {"x": tokens.bfloat16(), "n": torch.tensor(dp), "0": torch.zeros(0, 3)},
        "by rank": {"x": tokens, "y": tokens + rank},
        "one sample set": {"x": tokens - 100 * dp},
        "other keys": {"x": tokens, **({"y": tokens} if rank == 3 else {})},
        "other count": [tokens] * (2 if rank == 1 else 3),
        "other dtype": tokens.int() if rank == 1 else tokens,
        "other shape": tokens.view(4, 2) if rank == 1 else tokens,
        "other plain": {"x": tokens, "n": 1.0 if rank == 1 else 1},
        "other empty": {"x": tokens, "e": () if rank == 1 else []},
        "one bit": torch.tensor([0.0, dp, -0.0 if rank == 3 else 0.0]),
        "an object": {"x": tokens, "m": {1, 2} if rank == 2 else 1},
        "objects": {1, 2},
        "unreadable": {"x": tokens.to_sparse() if rank == 2 else tokens},
        "bare": tokens,
    }
    return cases[name]


def checks(names: list[str], data: tuple[str, ...] = ("dp",), sizes: Any = None) -> Any:
    """What each batch is told, and that the mesh works afterwards."""
    report: dict[str, Any] = {}
    with meshkit.build_mesh(**(sizes or {"dp": 2, "sp": 2})) as mesh:
        for name in names:
            try:
                mesh.check_batch(batch_of(name, mesh.rank, mesh.coordinate["dp"]), data=data)
                report[name] = None
            except meshkit.MeshkitError as error:
                report[name] = f"{type(error).__name__}: {error}"
        ones = torch.ones(())
        dist.all_reduce(ones, group=mesh.group())
        report["ranks"] = int(ones)
    return report


def all_checks(cases: list[tuple[Any, ...]]) -> Any:
    """Several times :func:`checks`."""
    return [checks(*case) for case in cases]


def refusals() -> Any:
    """What mesh.sampler says, word for word."""
    told: list[str] = []
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
                told.append(str(error))
        plain = meshkit.BatchPlan.solve(dp=2, global_batch=4, micro_batch=1)
        told.append(str([*mesh.sampler(range(4), plain)]))
        one = mesh.sampler(torch.tensor([1000]), plain)  # a dataset of one sample, not a number
        assert len(one) == one.steps == 1
        both = mesh.batch(global_batch=4, micro_batch=1, data=())  # all ranks read the same
        told.append(str([*mesh.sampler(range(4), both)]))
    return told
