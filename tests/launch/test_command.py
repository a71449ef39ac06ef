"""The command that errors propose where RANK numbers pods, and torchrun numbers their ranks."""

from __future__ import annotations

import shlex
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from string import Template
from typing import Any

import pytest

import meshkit
from meshkit.launch.world import free_port
from tests.launchers.checks import clean_environ
from tests.preloaded_python import TORCHRUN, run_python
from tests.promises import BUSY

POD = {"RANK": "1", "WORLD_SIZE": "8", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}


@pytest.mark.parametrize("prefix", ["PET_", ""])
@pytest.mark.parametrize(("pods", "per_pod"), [(2, 4), (4, 2), (16, 8)])
def test_the_number_of_a_pod_is_not_the_rank_of_one_of_its_processes(
    prefix: str, pods: int, per_pod: int
) -> None:
    """Kubeflow: WORLD_SIZE counts processes and RANK counts pods, if torchrun was not started."""
    names = {f"{prefix}NNODES": str(pods), f"{prefix}NPROC_PER_NODE": str(per_pod)}
    pod = {**POD, **names, "WORLD_SIZE": str(pods * per_pod)}
    for node in range(1, pods):
        own = {**pod, "RANK": str(node), f"{prefix}NODE_RANK": str(node)}
        with pytest.raises(meshkit.LaunchError) as caught:
            meshkit.detect(own)
        error = caught.value
        assert error.variables == {"RANK": str(node), f"{prefix}NODE_RANK": str(node)}
        assert "torchrun --nnodes $" in error.fix_text
        assert meshkit.detect({**own, "LOCAL_RANK": "0"}).local_rank == 0
        assert meshkit.detect({**own, "TORCHELASTIC_RUN_ID": "x"}).launcher == "torchrun"
        assert meshkit.detect(own, rank=node, local_rank=0).rank == node
        for local in range(per_pod):  # of a launcher that numbers ranks in blocks
            block = {**own, "RANK": str(node * per_pod + local)}
            assert meshkit.detect(block).node_rank == node
    first = {**pod, "RANK": "0", f"{prefix}NODE_RANK": "0"}
    assert meshkit.detect(first).rank == 0  # a rank 0 of such a launcher looks the same


@pytest.mark.parametrize("options", [{"NNODES": "1"}, {"PET_NNODES": "2", "PET_NODE_RANK": "0"}])
def test_a_first_pod_that_waits_for_ranks_of_a_torchrun_proposes_it(
    options: dict[str, str], tmp_path: Path
) -> None:
    """Kubeflow trainer pull 1840: RANK counts pods, WORLD_SIZE processes; rank 0 looks valid."""
    prefix = "PET_" if "PET_NNODES" in options else ""
    environ = {**options, f"{prefix}NPROC_PER_NODE": "2", "RANK": "0"}
    environ["WORLD_SIZE"] = "4" if prefix else "2"
    program = (
        f"import meshkit\nmeshkit.init(arrival_timeout=1, init_method='file://{tmp_path}/NAME')"
    )
    done = run_python(program.replace("NAME", "1"), environ=clean_environ(**environ))
    assert "RankTimeoutError" in done.stderr
    assert f"torchrun has not started this process, and {prefix}NPROC_PER_NODE" in done.stderr
    assert f"--nproc-per-node ${prefix}NPROC_PER_NODE" in done.stderr
    own = {**environ, "LOCAL_RANK": "0"}
    done = run_python(program.replace("NAME", "2"), environ=clean_environ(**own))
    assert "RankTimeoutError" in done.stderr
    assert "torchrun has" not in done.stderr


def join_as_pods(pods: list[dict[str, str]], seconds: float) -> list[tuple[str, float]]:
    """Run a process for each pod; return what each wrote to stderr, and its seconds."""
    outcomes: list[Any] = [None] * len(pods)
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}

    def run(number: int) -> None:
        began = time.monotonic()
        environ = clean_environ(**address, **pods[number], MESHKIT_MACHINE=str(number))
        done = run_python(
            f"import meshkit\nmeshkit.init(arrival_timeout={seconds})", environ=environ
        )
        outcomes[number] = done.stderr, time.monotonic() - began

    threads = [threading.Thread(target=run, args=[number]) for number in range(len(pods))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def test_a_pod_that_is_refused_ends_the_wait_of_the_first_pod() -> None:
    pod = {"WORLD_SIZE": "4", "PET_NNODES": "2", "PET_NPROC_PER_NODE": "2"}
    pods = [{**pod, "RANK": rank, "PET_NODE_RANK": rank} for rank in "01"]
    for (text, seconds), kind in zip(
        join_as_pods(pods, 60), ("DisagreementError", "LaunchError"), strict=True
    ):
        assert kind in text
        assert "RANK=1 is the number of this node (PET_NODE_RANK=1)" in text
        assert "Fix: torchrun --nnodes $PET_NNODES --node-rank $PET_NODE_RANK" in text
        assert seconds < 10 + BUSY


def test_pods_without_a_number_of_their_own_propose_the_torchrun_that_works(
    tmp_path: Path,
) -> None:
    """No variable says whether RANK counts pods; the ranks that are missing say it."""
    pod = {"WORLD_SIZE": "4", "PET_NNODES": "2", "PET_NPROC_PER_NODE": "2"}
    pods = [{**pod, "RANK": rank} for rank in "01"]
    for text, _ in join_as_pods(pods, 4):
        assert "RankTimeoutError" in text
        assert "Fix: torchrun --nnodes $PET_NNODES --node-rank $RANK --nproc-per-node" in text
    command = text.rpartition("Fix: ")[2].partition(" on each node")[0].removeprefix("torchrun")
    program = tmp_path / "train.py"
    program.write_text("import meshkit\nprint(meshkit.detect().rank, meshkit.detect().world_size)")
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}

    def torchrun(own: dict[str, str]) -> str:
        environ = clean_environ(**address, **own)
        argv = shlex.split(Template(command).substitute(environ).replace("train.py", str(program)))
        return run_python(TORCHRUN, *argv, environ=environ).stdout

    with ThreadPoolExecutor() as threads:
        lines = "".join(threads.map(torchrun, pods)).splitlines()
    assert sorted(lines) == [f"{rank} 4" for rank in range(4)]


def test_another_rank_that_is_missing_does_not_propose_torchrun() -> None:
    """A launcher of one's own that numbers ranks, and has lost one of them."""
    job = {"WORLD_SIZE": "4", "NNODES": "2", "NPROC_PER_NODE": "2"}
    ranks = [{**job, "RANK": rank, "NODE_RANK": str(int(rank) // 2)} for rank in "023"]
    for text, _ in join_as_pods(ranks, 4):
        assert "RankTimeoutError" in text
        assert "torchrun" not in text
