"""A forked process, and a worker of a DataLoader, are no ranks: collectives are refused there."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

import meshkit
from meshkit.launch import job
from meshkit.launch.judges import RankState
from meshkit.launch.process import current_process, state_of


def calls_of(mesh: meshkit.Mesh) -> dict[str, Any]:
    """Return calls that communicate."""
    return {
        "build_mesh": lambda: meshkit.build_mesh(dp=2),
        "build_mesh of an invalid request": lambda: meshkit.build_mesh(dp=7),
        "view": lambda: mesh.view(replicate=2),
        "barrier": mesh.barrier,
        "agree": lambda: mesh.agree("step", 1),
        "verify": mesh.verify,
        "check_batch": lambda: mesh.check_batch(torch.zeros(1)),
        "token_weights": lambda: mesh.token_weights([1]),
        "init": lambda: meshkit.init(seed="shared"),
        "shift": lambda: mesh.shift(torch.zeros(1), "dp"),
        "exchange": lambda: mesh.exchange(torch.zeros(2), "dp", [1, 1]),
        "redistribute": lambda: mesh.redistribute(torch.zeros(2), "i/dp -> i"),
        "recover": lambda: mesh.recover(),
        "gather": lambda: mesh.sequence(4, axes="dp").gather(torch.zeros(1, 2)),
    }


def errors_of(mesh: meshkit.Mesh) -> dict[str, str]:
    """Return the error of each collective in this process."""
    errors = {}
    for name, call in calls_of(mesh).items():
        try:
            call()
            errors[name] = "no error"
        except meshkit.LaunchError as error:
            errors[name] = str(error)
    return errors


def local_answers(mesh: meshkit.Mesh) -> Any:
    plan = mesh.batch(global_batch=4, micro_batch=1)
    batches = [list(batch) for batch in mesh.sampler(4, plan)]
    return mesh.coordinate, mesh.size("dp"), mesh.peers("dp").tolist(), batches


class Reports(Dataset[bytes]):
    """One item: what a worker sees."""

    def __init__(self, mesh: meshkit.Mesh) -> None:
        self.mesh = mesh

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> bytes:
        return pickle.dumps((errors_of(self.mesh), local_answers(self.mesh)))


def in_fork(mesh: meshkit.Mesh) -> Any:
    """Return what a process made by os.fork sees."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        report = pickle.dumps((errors_of(mesh), local_answers(mesh)))
        meshkit.shutdown()  # nothing of the rank is destroyed
        os.write(writer, report)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        report = pipe.read()
    os.waitpid(pid, 0)
    return pickle.loads(report)


def report_from_workers() -> Any:
    with meshkit.build_mesh(dp=2) as mesh:
        forked = in_fork(mesh)
        loader = DataLoader(
            Reports(mesh), batch_size=None, num_workers=1, multiprocessing_context="fork"
        )
        worker = pickle.loads(next(iter(loader)))
        mesh.barrier()  # the rank itself goes on
        return os.getpid(), local_answers(mesh), forked, worker


def build_in_worker(index: int) -> str:
    try:
        meshkit.build_mesh(dp=1)
        return "no error"
    except meshkit.LaunchError as error:
        return str(error)


class Unjoined(Dataset[str]):
    """A dataset whose worker builds a mesh, in a program that has joined no job."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> str:
        return build_in_worker(index)


def test_a_fork_computes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job in a forked child would ask CUDA for its device, which a fork cannot use."""
    computed: list[object] = []
    for name in ("current_job", "world_from_group", "set_current_job"):
        monkeypatch.setattr(job, name, computed.append)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        if (pid := os.fork()) == 0:
            os._exit(len(computed))
        assert os.waitpid(pid, 0)[1] == 0
    finally:
        dist.destroy_process_group()


def test_the_name_of_a_process_may_end_within_a_letter() -> None:
    """Linux cuts it at 15 bytes, also that of setproctitle and of Ray's actors."""
    name = Path("/proc/self/comm")
    before = name.read_bytes()
    name.write_bytes("actor.äääää".encode()[:15])
    try:
        assert state_of(current_process()) is RankState.BUSY
    finally:
        name.write_bytes(before.strip())


def test_collectives_are_refused_where_no_rank_is_and_getters_work() -> None:
    for rank, (pid, answers, forked, worker) in enumerate(
        meshkit.spawn(report_from_workers, 2, timeout=120)
    ):
        for errors, local in (forked, worker):
            assert local == answers
            assert {"verify", "gather", "barrier", "shift", "recover"} <= errors.keys()
        for name, text in forked[0].items():
            assert f": this process is a fork of rank {rank}, and no rank itself." in text, name
            assert f"the rank is pid {pid}." in text
            assert "Fix: communicate in the process of the rank; here, use mesh.coordinate" in text
        for name, text in worker[0].items():
            assert f"this process is a worker of a DataLoader of rank {rank}" in text, name
            assert "It is worker 0 of 1, pid " in text


def test_a_worker_of_a_program_without_a_job_is_refused() -> None:
    (text,) = DataLoader(Unjoined(), batch_size=None, num_workers=1, multiprocessing_context="fork")
    assert text.startswith("build_mesh(dp=1): this process is a worker of a DataLoader of rank 0")
