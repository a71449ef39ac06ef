"""meshkit beside torch's init_device_mesh: the README's table, on real processes in one run."""

from __future__ import annotations

import socket
import subprocess
import sys
from datetime import timedelta

import pytest

import meshkit
from meshkit.live import create

from . import beside

pytestmark = pytest.mark.skipif(
    not create.KEEPS_ORDER, reason="the README's table speaks of torch 2.13"
)


def test_the_timeout_of_the_job() -> None:
    for theirs, ours in meshkit.spawn(beside.timeouts, 4, timeout=60):
        assert theirs == [timedelta(minutes=30)] * 2
        assert ours == [timedelta(seconds=60)] * 2


def test_three_axes_of_size_one() -> None:
    assert set(meshkit.spawn(beside.groups_of_three_axes_of_one, 2, timeout=60)) == {(3, 1)}


def test_what_ten_meshes_leave_behind() -> None:
    for theirs, ours in meshkit.spawn(beside.left_by_ten, 4, timeout=60):
        groups, descriptors = theirs
        assert groups == 20
        assert descriptors > 20
        assert ours == (0, 0)


def test_the_place_in_a_group_and_the_coordinate() -> None:
    results = meshkit.spawn(beside.permuted, 4, timeout=60)
    assert any(coordinate != place for (coordinate, place), _ in results)
    assert all(coordinate == place for _, (coordinate, place) in results)


def test_six_ranks_for_a_mesh_of_eight() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        method = f"127.0.0.1:{probe.getsockname()[1]}"
    for theirs, ours in meshkit.spawn(beside.six_for_eight, 6, (method,), timeout=60):
        assert theirs == ("RuntimeError", True)  # the job has been joined
        assert ours == ("SpecError", False)


def test_dtensor_on_a_mesh_after_an_equal_one_was_closed() -> None:
    for ours, theirs in meshkit.spawn(beside.dtensor_after_an_equal_mesh, 4, timeout=60):
        assert ours == [4, 4]
        assert theirs == [4, "Could not resolve the process group registered"]


def test_seen_before_the_job_runs() -> None:
    """A layout needs nothing; init_device_mesh needs the variables of a job."""
    ours = "import sys, meshkit as m; print(m.factor_world(8, sp=2), 'torch' in sys.modules)"
    theirs = "from torch.distributed.device_mesh import init_device_mesh as i; i('cpu', (4, 2))"
    assert alone(ours).stdout.endswith("dp=3     6     7 False\n")
    done = alone(theirs)
    assert done.returncode != 0
    assert "RANK" in done.stderr


def alone(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
