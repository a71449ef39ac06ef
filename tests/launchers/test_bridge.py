"""Two jobs of real launchers meet at a store: torchrun and torchrun, torchrun and spawn."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from examples import rl
from tests.launchers.checks import clean_environ
from tests.launchers.two_hosts import two_hosts

ROOT = Path(__file__).parents[2]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
STEPS = ["--steps", "3"]
REWARDS = ["0.185", "0.185", "0.258"]  # of one process


def read_rewards(text: str) -> list[str]:
    """Return the rewards that the trainer has printed."""
    return re.findall(r"reward (\S+)", text)


def side(name: str, store: str) -> list[str]:
    """Return the arguments of one side, on two ranks."""
    meshes = ["--trainer", "tp=2", "--sampler", "dp=2"]
    return [str(ROOT / "examples" / "rl.py"), "--side", name, "--store", store, *meshes, *STEPS]


@pytest.fixture
def store() -> Iterator[str]:
    """Host a store by its command; return its address."""
    command = [sys.executable, "-m", "meshkit", "store", "--port", "0", "--json"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = json.loads(server.stdout.readline())["address"].rpartition(":")[2]
            yield f"store://localhost:{port}/rl"
        finally:
            server.kill()


@pytest.mark.slow
def test_torchrun_and_spawn(store: str) -> None:
    trainer = subprocess.Popen(
        [*TORCHRUN, "--nproc-per-node", "2", "--standalone", *side("trainer", store)],
        env=clean_environ(),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        sampler = rl.meshkit.spawn(
            rl.run_side, 2, ("sampler", store, {"dp": 2, "tp": 1}, 3), timeout=200
        )
        assert sampler == [{}, {}]
        assert read_rewards(trainer.communicate(timeout=60)[0]) == REWARDS
    finally:
        trainer.kill()
        trainer.wait()


@pytest.mark.slow
def test_torchrun_and_torchrun_on_two_hosts(tmp_path: Path) -> None:
    """Each job is on a host of its own, a network namespace, and the store is with the trainer."""
    with two_hosts(tmp_path, "trainer", "sampler") as hosts, ExitStack() as stack:

        def start(host: int, *command: str) -> subprocess.Popen[str]:
            variables = {"GLOO_SOCKET_IFNAME": hosts[host].namespace, "PYTHONPATH": str(ROOT)}
            process = subprocess.Popen(
                hosts[host].command(*command),
                env=clean_environ() | variables,
                cwd=ROOT,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.enter_context(process)  # closes its output, and waits for it
            stack.callback(process.kill)
            return process

        start(0, sys.executable, "-m", "meshkit", "store", "--port", "29400")
        address = f"store://{hosts[0].address}:29400/rl"
        jobs = [
            start(host, *TORCHRUN, "--nproc-per-node", "2", "--standalone", *side(name, address))
            for host, name in enumerate(("trainer", "sampler"))
        ]
        outputs = [job.communicate(timeout=200)[0] for job in jobs]
        assert [job.returncode for job in jobs] == [0, 0]
        assert read_rewards(outputs[0]) == REWARDS
