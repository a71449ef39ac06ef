"""A slow link between hosts: ``meshkit bench`` names the groups that use it.

Each host is a network namespace, and ``tc`` limits the speed of its port of the switch.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks.hosts import NoHostsError, hosts_on_a_switch, read_figures, start_rank
from tests.launchers.checks import require_programs

PORT = 29510  # in the namespace of the first host


@pytest.mark.slow
def test_the_groups_of_a_slow_link_are_named(tmp_path: Path) -> None:
    require_programs("iproute2", "ip", "tc")
    require_programs("util-linux", "unshare", "nsenter")
    try:
        hosts = hosts_on_a_switch(tmp_path, 4, "400mbit")
        entered = hosts.__enter__()
    except NoHostsError as error:
        pytest.skip(str(error))
    try:
        last = entered[3].namespace
        limit = ["root", "tbf", "rate", "20mbit", "burst", "64kb", "latency", "400ms"]
        subprocess.run(["tc", "-n", last, "qdisc", "change", "dev", last, *limit], check=True)
        typed = "meshkit bench dp=2 sp=2 --device cpu --json --axes dp,sp --sizes 256K --iters 20"
        master = entered[0].address, PORT
        ranks = [
            start_rank(host, typed.split(), (rank, 4, 0, 1), master)
            for rank, host in enumerate(entered)
        ]
        slow = read_figures(ranks, ranks[0], 200)["slow"]
    finally:
        hosts.__exit__(None, None, None)
    assert [(group["axes"], group["group"], group["hosts"]) for group in slow] == [
        ("dp", "sp=1", ["host2", "host4"]),
        ("sp", "dp=1", ["host3", "host4"]),
    ]
    assert all(group["factor"] > 2 for group in slow)
