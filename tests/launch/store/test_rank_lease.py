"""A lease on a rank number: renewed, replaced, rejected."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from meshkit.core.hang import Life
from meshkit.launch.store.check_in import ProcessIdentity
from meshkit.launch.store.keys import DECISION, GENERATION, JOIN_ROUND
from meshkit.launch.store.rank_lease import (
    LeaseHolder,
    RankTakenError,
    acquire_rank,
    end_abandoned,
    is_generation_over,
    last_seen,
    read_lease_holders,
)


def test_a_process_renews_its_lease_and_replaces_an_exited_one() -> None:
    base, host = dist.HashStore(), socket.gethostname()
    assert [acquire_rank(base, 4).generation for _ in range(3)] == [1, 2, 3]
    namespace = LeaseHolder.current().start.rpartition(" ")[0]
    exited = LeaseHolder(ProcessIdentity(host, 1), f"{namespace} 12345678901", "c", 7)
    base.set("meshkit/lease/5", json.dumps(exited._asdict()))
    assert exited.life() is Life.ENDED
    assert acquire_rank(base, 5).generation == 8
    assert dist.PrefixStore(GENERATION.format(7), base).check(["over"])
    twin = LeaseHolder(ProcessIdentity(host, 1), "another boot or container", "c", 7)
    assert twin.runs() is None  # hosts may share a name
    far = LeaseHolder(ProcessIdentity("another-host", 1), "9", "c", 20)
    base.set("meshkit/lease/6", json.dumps(far._asdict()))
    assert far.life() is Life.UNKNOWN
    with pytest.raises(RankTakenError) as caught:
        acquire_rank(base, 6)
    assert (caught.value.holder, caught.value.waits) == (far, True)
    base.set("meshkit/20/round/1/decision", "all")  # its job began long ago, and may have ended
    assert acquire_rank(base, 6).generation == 21


def test_this_process_runs_and_a_zombie_does_not() -> None:
    own = LeaseHolder.current()
    assert own.runs() is True
    assert own.life() is Life.BUSY
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # ended, and still in the process table
    stat = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
    assert stat[0] == "Z"
    namespace = own.start.rpartition(" ")[0]
    zombie = ProcessIdentity(socket.gethostname(), child)
    assert LeaseHolder(zombie, f"{namespace} {stat[19]}", "c").runs() is False
    os.waitpid(child, 0)


def test_missing_ranks_are_described_by_their_last_process() -> None:
    base, process = dist.HashStore(), ProcessIdentity.current()
    assert [acquire_rank(base, rank).generation for rank in (0, 1, 0)] == [1, 1, 2]
    store = dist.PrefixStore(GENERATION.format(2), base)
    assert sorted(read_lease_holders(store, range(4))) == [0, 1]
    line = f"{process} (in its first init, this rank is in its second)"
    assert last_seen(store, 0, [1, 2]) == {1: line}
    assert read_lease_holders(base, [0]) == {}  # not the store of a generation


def test_a_process_that_another_one_has_replaced_counts_as_ended() -> None:
    base = dist.HashStore()
    assert [acquire_rank(base, rank).generation for rank in (0, 1, 1)] == [1, 1, 2]
    store = dist.PrefixStore(GENERATION.format(1), base)
    holders = read_lease_holders(store, [0, 1], 1)
    assert [holders[rank].runs() for rank in (0, 1)] == [True, False]
    assert holders[1].life() is Life.ENDED
    assert all(holder.runs() for holder in read_lease_holders(store, [0, 1]).values())


def test_a_generation_is_over_when_another_process_replaces_its_rank() -> None:
    base = dist.HashStore()
    own = LeaseHolder.current()
    namespace = own.start.rpartition(" ")[0]
    exited = LeaseHolder(ProcessIdentity(own.process.host, 1), f"{namespace} 12345678901", "c", 1)
    base.set("meshkit/lease/0", json.dumps(exited._asdict()))
    assert not is_generation_over(dist.PrefixStore(GENERATION.format(1), base))
    assert acquire_rank(base, 0).generation == 2
    assert is_generation_over(dist.PrefixStore(GENERATION.format(1), base))


@pytest.mark.parametrize(
    ("host", "decided", "ended"),
    [
        (socket.gethostname(), False, True),  # it has exited
        ("another-host", False, False),  # not known here whether it runs
        (socket.gethostname(), True, False),  # the ranks had decided before
    ],
)
def test_a_start_is_abandoned_only_if_its_first_process_is_known_to_have_exited(
    host: str, decided: bool, ended: bool
) -> None:
    base = dist.HashStore()
    namespace = LeaseHolder.current().start.rpartition(" ")[0]
    first = LeaseHolder(ProcessIdentity(host, 1), f"{namespace} 12345678901", "c", 1)
    if decided:
        dist.PrefixStore(JOIN_ROUND.format(1), base).set(DECISION, "all")
    store = dist.PrefixStore(GENERATION.format(1), base)
    end_abandoned(store, 1, first.process, first.start)
    assert is_generation_over(store) == ended


def test_a_process_of_another_time_namespace_is_never_judged() -> None:
    """Linux shifts the start of a process by the clock of the reader's time namespace."""
    script = (
        "from meshkit.launch.store.rank_lease import LeaseHolder; import sys, json;"
        "holder = LeaseHolder.from_json(sys.stdin.read());"
        "print(holder.runs(), LeaseHolder.current().start != holder.start)"
    )
    text = json.dumps(LeaseHolder.current()._asdict())
    shift = ["unshare", "--time", "--boottime", "1000"]
    probe = subprocess.run([*shift, "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip("this machine lets no test make a time namespace")
    for prefix, runs in ((shift, "None True"), ([], "True True")):
        command = [*prefix, sys.executable, "-c", script]
        ran = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
        assert ran.stdout.strip() == runs
