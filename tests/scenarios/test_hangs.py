"""Each kind of hang, played by real ranks: the report names it and the rank that causes it."""

from __future__ import annotations

import ast
import ctypes
import json
import os
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.guard import hang as hang_module
from meshkit.testing.faults import Played, Strike, play
from tests import nccl_like
from tests.faults import describe_error
from tests.promises import BUSY
from tests.scenarios.test_nccl_like import join

TENSORS = [[[4, 8], "float32"]]  # of each call
LIMIT = 3.0  # seconds of the guard
REPORT = 3.0  # seconds from the limit to the report
LONG = 25.0  # seconds of the guard in which a report comes at once
SO_ATTACH_FILTER = 26  # of Linux: a filter in the kernel for the packets of one socket
SLEEP = LIMIT + REPORT + BUSY  # of a rank that sleeps until all others have their report
Pair = tuple[torch.Tensor, torch.Tensor]  # for the collective over tp, and for that of all ranks
SIZES = {4: {"dp": 2, "tp": 2}, 8: {"pp": 2, "dp": 2, "tp": 2}}


def spin(strike: Strike) -> None:
    """Compute without an end in sight."""
    strike.note()
    until = time.monotonic() + SLEEP
    while time.monotonic() < until:
        sum(range(1000))


# ------------------------------------------------------------ the kinds, on the rank with the fault


def pass_by(strike: Strike, mesh: meshkit.Mesh, x: Pair) -> None:
    """Leave the guard without the collectives of the step."""
    strike.note()


def call_another(strike: Strike, mesh: meshkit.Mesh, x: Pair) -> None:
    """Begin another collective than the peers."""
    strike.note()
    root = dist.get_global_rank(mesh.group("tp"), 1 - mesh.group_rank("tp"))
    dist.broadcast(x[0], root, group=mesh.group("tp"))
    dist.all_reduce(x[1], group=mesh.group())


def change_the_order(strike: Strike, mesh: meshkit.Mesh, x: Pair) -> None:
    """Begin the collectives of two groups in the other order than the peers."""
    strike.note()
    dist.all_reduce(x[1], group=mesh.group())
    dist.all_reduce(x[0], group=mesh.group("tp"))


def receive_what_nobody_sends(strike: Strike, mesh: meshkit.Mesh, x: Pair) -> None:
    """Wait for a message of the peer over tp, which is in a collective of all ranks."""
    peer = dist.get_global_rank(mesh.group("tp"), 1 - mesh.group_rank("tp"))
    strike.note()
    dist.recv(x[0], peer, group=mesh.group("tp"))


def die(strike: Strike, mesh: meshkit.Mesh, x: Pair) -> None:
    strike.kill()


def stop(strike: Strike, mesh: meshkit.Mesh, x: Pair) -> None:
    strike.stop()


def compute(strike: Strike, mesh: meshkit.Mesh, x: Pair) -> None:
    spin(strike)


def leave(strike: Strike, mesh: meshkit.Mesh, x: Pair) -> None:
    """Leave by an error of user code, in a process that goes on."""
    strike.note()
    raise ValueError("no batch")


def wedge(strike: Strike, mesh: meshkit.Mesh, x: Pair) -> None:
    """Begin the collectives of the step, which never end; on gloo all ranks do that."""
    if dist.get_backend() == "gloo":
        drop_packets()
        mesh.agree("packets", "dropped")  # over the store: no packet comes later
    strike.note()
    nccl_like.WEDGED |= {mesh.group("tp").group_name, mesh.group().group_name}
    dist.all_reduce(x[0], group=mesh.group("tp"))
    dist.all_reduce(x[1], group=mesh.group())


def drop_packets() -> None:
    """Let the kernel drop what comes to this process over TCP. The store is a file.

    A filter of each socket accepts 0 bytes of a packet, so it is neither read nor acknowledged.
    """
    accept_nothing = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
    program = struct.pack("HP", 1, ctypes.addressof(accept_nothing))
    families = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError), socket.socket(fileno=os.dup(int(name))) as connection:
            if connection.family in (socket.AF_INET, socket.AF_INET6):
                connection.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
                families.append(connection.family)
    assert families


KINDS: dict[str, Callable[[Strike, meshkit.Mesh, Pair], None]] = {
    "behind": pass_by,
    "mismatch": call_another,
    "order": change_the_order,
    "message": receive_what_nobody_sends,
    "dead": die,
    "stopped": stop,
    "busy": compute,
    "left": leave,
    "wedge": wedge,
}


def hang(strike: Strike, kind: str, odd: int) -> str:
    """Take a step in which the odd rank has a fault, and return the report as JSON."""
    meshkit.init(timeout=60, arrival_timeout=60)
    return report_of(strike, kind, odd)


def report_of(strike: Strike, kind: str, odd: int, limit: float = LIMIT) -> str:
    """Return the report of this rank, with the table that was judged last on it."""
    mesh = meshkit.build_mesh(SIZES[dist.get_world_size()])
    for axes in (("tp",), (), ("tp",)):
        dist.all_reduce(torch.ones(4, 8, device=mesh.device), group=mesh.group(*axes))
    mesh.barrier()
    x = torch.ones(4, 8, device=mesh.device), torch.ones(4, 8, device=mesh.device)
    tables, outcome, real = list[dict[str, Any]](), dict[str, Any](), hang_module.hang_error

    def keep(summary: str, layout: Any, statuses: Any, silent: Any, *rows: Any) -> Any:
        table = {rank: status.to_facts() for rank, status in statuses.items()}
        tables.append({**table, **dict.fromkeys(silent, "silent")})
        return real(summary, layout, statuses, silent, *rows)

    pytest.MonkeyPatch().setattr(hang_module, "hang_error", keep)
    try:
        with mesh.guard(timeout=LONG if kind in AT_ONCE_KINDS else limit):
            began = time.monotonic()
            if mesh.rank == odd or (kind == "wedge" and dist.get_backend() == "gloo"):
                KINDS[kind](strike, mesh, x)
            else:
                if kind == "message" and odd in mesh.peers("tp"):
                    dist.all_reduce(x[1], group=mesh.group())
                dist.all_reduce(x[0], group=mesh.group("tp"))
                dist.all_reduce(x[1], group=mesh.group())
            (x[0] + x[1]).sum().item()
    except (meshkit.CollectiveError, ValueError) as error:
        outcome = {**describe_error(error), "seconds": time.monotonic() - began}
        outcome["hang"] = getattr(error, "kind", "")
    if mesh.rank == odd and kind in ("left", "behind"):
        time.sleep(SLEEP)
    return json.dumps({**outcome, "table": tables[-1] if tables else None})


def hang_on_device(strike: Strike, kind: str, odd: int) -> str:
    """Do the same on the stand-in for NCCL, where a call returns before its work is done."""
    os.environ["TORCH_NCCL_ENABLE_TIMING"] = TIMED[odd]
    join()
    return report_of(strike, kind, odd)


# the kinds at whose end the process of the odd rank has no report
UNREPORTED = {"dead": "SIGKILL", "stopped": "stopped"}
AT_ONCE_KINDS = ("dead",)
ALONE = ("dead", "stopped", "left", "busy", "behind")  # the kinds of which one rank is the root
TIMED = {3: "0", 5: "1"}  # by the odd rank of 4 and of 8: whether the device says what has started
TWO_CALLS = ("order", "message")  # kinds that only the calls of two groups tell apart
ON_DEVICE = ("busy", "dead", "mismatch", "order", "message", "wedge")


def reports(played: Played) -> dict[int, dict[str, Any]]:
    return {
        rank: json.loads(ast.literal_eval(outcome.text))
        for rank, outcome in played.outcomes.items()
    }


def check_report(kind: str, odd: int, played: Played, limit: float = LIMIT) -> dict[str, Any]:
    """Check when and whom the reports name, and return the table that was judged."""
    assert played.fired == odd or kind == "wedge"
    assert played.ends[odd] == UNREPORTED.get(kind, "ended")
    by_rank = reports(played)
    failed = {r: seen for r, seen in by_rank.items() if seen.get("kind") == "CollectiveError"}
    waiting = {r: seen for r, seen in failed.items() if r != odd}
    assert waiting, by_rank
    for report in waiting.values():
        assert report["missing"] == ([odd] if kind in UNREPORTED else []), report
        assert report["hang"] == kind, report
        # ranks that wait for each other are the root together, and a wedge has none of its own
        assert report["root"] == [odd] or (kind not in ALONE and odd in report["root"]), report
        promised = 1.0 if kind in AT_ONCE_KINDS else limit + REPORT
        assert report["seconds"] < promised + BUSY, report
    tables = [report["table"] for report in failed.values() if report["table"]]
    assert tables, by_rank
    table: dict[str, Any] = tables[0]
    return table


def check_table(kind: str, odd: int, table: dict[str, Any]) -> None:
    """Check what the ranks have told: the calls that decide the kind."""
    own, peer = table[str(odd)], table[str(odd ^ 1)]  # of one group over tp
    if kind in UNREPORTED:
        assert own == "silent"
        return
    if kind == "left":
        assert own["error"].startswith("ValueError")
        return
    (whole,) = peer["calls"].keys() & {"dp tp", "pp dp tp"}
    calls = {axes: peer["calls"][axes][-1] for axes in (whole, "tp")}
    number = calls["tp"][0]
    if kind != "behind":
        mine = {axes: own["calls"][axes][-1] for axes in (whole, "tp")}
    if kind == "behind":
        assert own["left_guard"] == 1
    elif kind == "mismatch":
        assert mine["tp"][:3] == [number, "broadcast", TENSORS]
        assert calls["tp"][:3] == [number, "all_reduce", TENSORS]
        assert "(call_another)" in mine["tp"][3]
    elif kind == "order":
        assert mine[whole][5] == calls["tp"][5] == "begun"
        assert (mine[whole][0], number) == (calls[whole][0] + 1, mine["tp"][0] + 1)
    elif kind == "message":
        assert mine["tp"][1:3] == ["recv", TENSORS]
        assert (mine["tp"][4], mine["tp"][5]) == (odd ^ 1, "begun")
        assert own["function"] == "recv"
    elif kind == "wedge":
        assert mine["tp"] == calls["tp"]
        assert calls["tp"][1:3] == ["all_reduce", TENSORS]
    elif kind == "busy":
        assert (own["function"], mine["tp"][0], mine["tp"][5]) == ("", number - 1, "completed")
        assert "(spin)" in own["line"]


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_on_four_ranks(kind: str, played: Played) -> None:
    check_table(kind, 3, check_report(kind, 3, played))


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.slow if kind in TWO_CALLS else pytest.mark.nightly)
        for kind in KINDS
    ],
)
def test_each_kind_on_eight_ranks(kind: str, played: Played) -> None:
    check_table(kind, 5, check_report(kind, 5, played))


@pytest.mark.parametrize("kind", ON_DEVICE)
def test_kinds_on_the_stand_in_for_nccl(kind: str, played: Played) -> None:
    check_device_table(kind, 3, check_report(kind, 3, played))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ON_DEVICE)
def test_kinds_on_eight_ranks_of_the_stand_in(kind: str, played: Played) -> None:
    check_device_table(kind, 5, check_report(kind, 5, played))


def check_device_table(kind: str, odd: int, table: dict[str, Any]) -> None:
    """Check the table of ranks that wait nowhere in Python, by the calls on the device."""
    own, peer = table[str(odd)], table[str(odd ^ 1)]
    if kind == "dead":
        assert own == "silent"
        return
    (whole,) = peer["calls"].keys() & {"dp tp", "pp dp tp"}
    mine, calls = ({a: each["calls"][a][-1] for a in (whole, "tp")} for each in (own, peer))
    number, started = calls["tp"][0], "started" if TIMED[odd] == "1" else "begun"
    assert not own["sees_waits"]
    if kind == "message":  # the peer is in the collective of all ranks, before that over tp
        assert mine["tp"][1:6] == ["recv", TENSORS, "", odd ^ 1, started]
        assert (calls[whole][5], calls["tp"][5]) == (started, "begun")
        return
    assert calls["tp"][1:3] == ["all_reduce", TENSORS]
    assert (calls["tp"][5], calls[whole][5]) == (started, "begun")
    if kind == "busy":
        assert (mine["tp"][0], mine["tp"][5]) == (number - 1, "completed")
        assert "(spin)" in own["line"]
    elif kind == "mismatch":
        assert mine["tp"][:3] == [number, "broadcast", TENSORS]
    elif kind == "order":
        assert (mine["tp"][5], mine[whole][5]) == ("begun", started)
    elif kind == "wedge":
        assert (mine["tp"][0], mine["tp"][5]) == (number, started)
        assert own["begun"] == peer["begun"]


AT_ONCE = 3
JOBS: dict[str, Callable[[], Played]] = {
    f"{test}[{kind}]": partial(play, run, ranks, (kind, odd), timeout=90)
    for test, run, kinds, ranks, odd in (
        ("test_each_kind_on_four_ranks", hang, KINDS, 4, 3),
        ("test_each_kind_on_eight_ranks", hang, KINDS, 8, 5),
        ("test_kinds_on_the_stand_in_for_nccl", hang_on_device, ON_DEVICE, 4, 3),
        ("test_kinds_on_eight_ranks_of_the_stand_in", hang_on_device, ON_DEVICE, 8, 5),
    )
    for kind in kinds
}
