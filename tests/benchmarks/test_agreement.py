import doctest
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from itertools import product
from pathlib import Path

import pytest
import torch.distributed as dist

import meshkit
from benchmarks import agreement, jobs, store_calls
from benchmarks.agreement import called, first_calls, main, told
from benchmarks.jobs import sizes_of, where
from benchmarks.rows import ITSELF
from benchmarks.store_calls import LOCAL, counted, ranges

CALLS = ("init", "build_mesh", "mesh.agree", "mesh.barrier")


@pytest.mark.parametrize("module", [agreement, jobs, store_calls])
def test_examples_in_docstrings(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]


# --- counting --------------------------------------------------------------------------------


def stores(folder: Path) -> Iterator[dist.Store]:
    yield dist.HashStore()
    yield dist.FileStore(f"{folder}/store", 1)
    yield dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def use(store: dist.Store) -> None:
    """Eight operations, one of each kind but add."""
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
        with counted() as found:
            use(store)
        assert found == USED


def test_operations_on_several_keys_are_one_each() -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with counted() as found:
        store.multi_set(["a", "b"], ["1", "2"])
        store.multi_get(["a", "b"])
        store.append("a", "1")
        store.num_keys()
    assert found == dict.fromkeys(("multi_set", "multi_get", "append", "num_keys"), 1)


class Recording(dist.Store):
    """A store in Python, which passes on what it is asked: C++ calls its methods, too."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = dist.HashStore()

    def set(self, key: str, value: str) -> None:
        self.inner.set(key, value)

    def get(self, key: str) -> bytes:
        return self.inner.get(key)


@pytest.mark.parametrize("prefixes", range(3))
def test_a_store_written_in_python_counts_what_it_is_asked_not_what_it_asks(prefixes: int) -> None:
    store: dist.Store = (kept := Recording())
    for name in "ab"[:prefixes]:
        store = dist.PrefixStore(name, store)
    with counted() as found:
        store.set("key", "value")
        assert store.get("key") == b"value"
    assert found == {"set": 1, "get": 1}
    assert kept.inner.num_keys() == 1


def test_what_asks_nothing_of_a_store_is_not_counted() -> None:
    store = dist.HashStore()
    with counted() as found:
        store.set_timeout(store.timeout)
        store.has_extended_api()
        store.clone()
    assert found == {}
    assert {n for n in vars(dist.Store) if n in LOCAL} == LOCAL


def test_operations_of_other_threads_and_those_that_fail_are_counted() -> None:
    store = dist.HashStore()
    with counted() as outer:
        thread = threading.Thread(target=store.add, args=("number", 1))
        thread.start()
        thread.join()
        with counted() as inner, pytest.raises(RuntimeError):
            store.wait(["nothing"], timedelta(milliseconds=1))
    assert (inner, outer) == ({"wait": 1}, {"wait": 1, "add": 1})


def test_the_methods_are_put_back_after_an_error() -> None:
    def fail() -> None:
        with counted():
            changed.append(vars(dist.Store)["add"] is not before["add"])
            raise KeyError

    before, changed = dict(vars(dist.Store)), []
    with pytest.raises(KeyError):
        fail()
    assert changed == [True]
    assert dict(vars(dist.Store)) == before


def test_ranges_are_over_ranks() -> None:
    found = ranges([{"a": 1, "b": 2}, {"a": 4}, {"a": 1, "b": 1}])
    assert found == {"all": (2, 4), "a": (1, 4), "b": (0, 2)}


# --- what a healthy run asks of its store ----------------------------------------------------


def meeting_of(ranks: int, store: str) -> Counter[str]:
    """The operations of all ranks of one meeting together."""
    # request; here; the last of all is known by counting, or in a file by looking
    every = Counter({"compare_set": 1, "set": 1, "check" if store == "file" else "add": 1})
    last, other = Counter(check=1, compare_set=1), Counter(wait=1, get=1)
    found = last.copy()
    for _ in range(ranks):
        found += every
    for _ in range(ranks - 1):
        found += other
    return found


def expected(ranks: int, store: str) -> dict[str, Counter[str]]:
    """The operations of all ranks together, call by call."""
    one = meeting_of(ranks, store)
    claims = 2 + 2 * (store == "tcp")  # the seat and the seed; the attempt and its agent
    return {
        "init": one + one + Counter(compare_set=claims * ranks),
        "build_mesh": one + one,
        "mesh.agree": one,
        "mesh.barrier": Counter(set=ranks),
    }


@pytest.mark.parametrize(("ranks", "store"), [(2, "file"), (8, "file"), (2, "tcp")])
def test_operations_of_a_rank_do_not_depend_on_the_number_of_ranks(
    ranks: int, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RES_OPTIONS", "timeout:1 attempts:1")
    found = meshkit.spawn(first_calls, ranks, (where(store),), timeout=60)
    # rank 0 looks on which hosts the others are, as there is a tp axis
    found[0]["build_mesh"] = Counter(found[0]["build_mesh"]) - Counter(check=1)
    of_each = {call: {sum(one[call].values()) for one in found} for call in CALLS}
    # one look for a start that was given up, one for an attempt that is past; three more where
    # another rank has come before
    init = 16 if store == "tcp" else 14
    assert of_each.pop("init") <= {init, init + 3}
    assert of_each == {"build_mesh": {10}, "mesh.agree": {5}, "mesh.barrier": {1}}
    together = {call: sum((Counter(one[call]) for one in found), Counter()) for call in CALLS}
    looked = sum(sum(one["init"].values()) == init + 3 for one in found)
    wanted = expected(ranks, store)
    wanted["init"] += Counter(check=2 * ranks + looked, get=2 * looked)
    assert together == wanted


@pytest.mark.parametrize("ranks", [2, 4, 6, 8, 32, 128])
def test_the_mesh_of_a_job_has_all_its_ranks(ranks: int) -> None:
    layout = meshkit.factor_world(ranks, tp=4 if ranks % 4 == 0 else 2)
    assert sizes_of(ranks) == layout.sizes


# --- rows and what is printed ----------------------------------------------------------------

COUNTS = [
    {"init": {"add": 4, "check": 1}},
    {"init": {"add": 4, "get": 2}},
    {"init": {"add": 9}},
]

TOLD = """\
Store operations of a rank from Python, least-most over ranks where they differ:

ranks  call                   all         add       check         get        wait
    2  init                   5-6           4         0-1         0-2           0
  128  build_mesh              12           0           0           0         1-2"""


def test_what_is_printed_is_exactly_this() -> None:
    found = {2: called(COUNTS[:2]), 128: {"build_mesh": {"all": (12, 12), "wait": (1, 2)}}}
    assert told(found) == TOLD


def test_a_row_is_that_of_the_middle_rank_beside_8_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    less = [{"init": {"add": 3}}]
    monkeypatch.setattr(agreement, "counts", lambda ranks, _: less if ranks == 8 else COUNTS)
    rows = agreement.run(quick=False)
    found = [(row.scale, row.ours, row.theirs, row.met) for row in rows]
    assert found == [(8, 3, 3, True), (32, 6, 3, False), (128, 6, 3, False)]
    assert {(row.what, row.peer) for row in rows} == {("store operations of a rank, init", ITSELF)}
    assert [row.scale for row in agreement.run(quick=True)] == [8]


# --- options ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-n", "8", "3"], "3 is odd, but the mesh has tp=2 at least"),
        (["-n", "0"], "'0' is not a whole number of 1 or more"),
        (["--store", "etcd"], "invalid choice: 'etcd'"),
    ],
)
def test_wrong_options_are_refused_before_any_process_starts(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert words in capsys.readouterr().err


def test_a_launcher_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit, match="2"):
        main([])
    assert "it starts its own ranks: run it without a launcher" in capsys.readouterr().err


def test_the_store_of_a_job_is_that_of_spawn_or_a_free_port() -> None:
    assert where("file") is None
    host, _, port = str(where("tcp")).rpartition(":")
    assert host == "tcp://127.0.0.1"
    store = dist.TCPStore("127.0.0.1", int(port), is_master=True, wait_for_workers=False)
    assert store.port == int(port)


def test_it_prints_the_operations_of_a_real_job(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-n", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    found = {line.split()[1]: line.split()[2] for line in lines[3:]}
    assert found.pop("init") in ("14", "14-17")
    # rank 0 looks for the hosts of both
    assert found == {"build_mesh": "10-11", "mesh.agree": "5", "mesh.barrier": "1"}
