"""Store operations: how they are counted, and how many each call of a healthy job needs."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
import torch.distributed as dist

import meshkit
from benchmarks import agreement
from benchmarks.agreement import count_store_calls, first_calls
from benchmarks.harness import ITSELF

CALLS = ("init", "build_mesh", "mesh.agree", "mesh.barrier")


def stores(folder: Path) -> Iterator[dist.Store]:
    yield dist.HashStore()
    yield dist.FileStore(f"{folder}/store", 1)
    yield dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def use(store: dist.Store) -> None:
    """Make eight operations: two of add, one of each other kind."""
    store.set("key", "value")
    store.get("key")
    store.add("number", 1)
    store.add("number", 0)
    store.wait(["key"])
    store.check(["key"])
    store.compare_set("other", "", "value")
    store.delete_key("other")


USED = dict.fromkeys(("set", "get", "wait", "check", "compare_set", "delete_key"), 1) | {"add": 2}


def test_every_operation_on_every_store_is_counted_once_however_many_prefixes_it_has(
    tmp_path: Path,
) -> None:
    for depth, store in product(range(3), stores(tmp_path)):
        for name in "ab"[:depth]:
            store = dist.PrefixStore(f"{name}/{depth}", store)
        with count_store_calls() as counts:
            use(store)
        assert counts == USED


def agreement_of(ranks: int) -> Counter[str]:
    """Return the operations of all ranks of one agreement together."""
    # request; arrival; the count by which a rank knows that it is the last; the decision
    total = Counter({"compare_set": ranks, "append": ranks, "add": ranks, "get": ranks - 1})
    return total + Counter(check=1, compare_set=1)  # of the last rank


def expected(ranks: int, groups: int) -> dict[str, Counter[str]]:
    """Return the operations of all ranks together, call by call, if a mesh has so many groups."""
    one, both = agreement_of(ranks), agreement_of(ranks) + agreement_of(ranks)
    # Each rank takes its rank and the generation, states its build of torch, and looks who has
    # begun that generation. Rank 0 marks the attempt, and reads the hosts of the other ranks, since
    # there is a tp axis. Each rank deletes its addresses in the groups that were made before the
    # round, and the last one of mesh.agree what the first round of build_mesh has left.
    round_before = ("first", "arrived", "count", "decision")
    return {
        "init": both + Counter(compare_set=3 * ranks + 1, check=ranks),
        "build_mesh": both + Counter(check=2, get=1, delete_key=ranks),
        "mesh.agree": one + Counter(delete_key=groups * ranks + len(round_before)),
        "mesh.barrier": Counter(append=ranks, add=ranks),
    }


@pytest.mark.parametrize(("ranks", "groups"), [(2, 1), (8, 3)])
def test_operations_of_a_rank_do_not_depend_on_the_number_of_ranks(ranks: int, groups: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        url = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    counts = meshkit.spawn(first_calls, ranks, (url,), timeout=60)
    together = {call: sum((rank[call] for rank in counts), Counter()) for call in CALLS}
    # a rank that comes later reads who has begun the start of the job
    late = together["init"]["get"] - expected(ranks, groups)["init"]["get"]
    assert 0 <= late < ranks
    together["init"]["get"] -= late
    assert together == expected(ranks, groups)


def test_a_row_is_that_of_the_median_rank_beside_8_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    few = [{"init": Counter(add=3)}]
    many = [{"init": Counter(add=n)} for n in (5, 6, 9)]
    monkeypatch.setattr(meshkit, "spawn", lambda fn, ranks, *_, **__: few if ranks == 8 else many)
    rows = agreement.run(quick=False)
    figures = [(row.scale, row.ours, row.theirs, row.met) for row in rows]
    assert figures == [(8, 3, 3, True), (32, 6, 3, False), (128, 6, 3, False)]
    assert {(row.what, row.peer) for row in rows} == {("store operations of a rank, init", ITSELF)}
    assert [row.scale for row in agreement.run(quick=True)] == [8]
