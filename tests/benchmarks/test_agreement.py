import doctest
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from fractions import Fraction
from itertools import product
from pathlib import Path
from statistics import median

import pytest
import torch
import torch.distributed as dist

import meshkit
from benchmarks import agreement, meetings, store_calls
from benchmarks.agreement import Report, Row, main, row, table, where
from benchmarks.meetings import TIMED, first_calls, meetings_timed, raw_groups, sizes_of
from benchmarks.store_calls import LOCAL, counted, ranges
from meshkit.core.plan import GroupPlan
from meshkit.core.timing import Spread
from meshkit.launch import meet, together
from meshkit.live import agree

ROOT = Path(__file__).parents[2]
CALLS = ("init", "build_mesh", "mesh.agree", "mesh.barrier")


@pytest.mark.parametrize("module", [agreement, meetings, store_calls])
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


def meeting_of(ranks: int) -> Counter[str]:
    """The operations of all ranks of one meeting together."""
    every = Counter(add=2, compare_set=1, set=1)  # number, count; request; here
    last, other = Counter(check=1, compare_set=1), Counter(wait=1, get=1)
    found = last.copy()
    for _ in range(ranks):
        found += every
    for _ in range(ranks - 1):
        found += other
    return found


def expected(ranks: int, store: str) -> dict[str, Counter[str]]:
    """The operations of all ranks together, call by call."""
    one = meeting_of(ranks)
    claims = 2 + 2 * (store == "tcp")  # the seat and the seed; the attempt and its agent
    return {
        "init": one + one + Counter(compare_set=claims * ranks),
        "build_mesh": one + one,
        "mesh.agree": one,
        "mesh.barrier": Counter(add=ranks, set=ranks),
    }


@pytest.mark.parametrize(("ranks", "store"), [(2, "file"), (8, "file"), (2, "tcp")])
def test_operations_of_a_rank_do_not_depend_on_the_number_of_ranks(
    ranks: int, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RES_OPTIONS", "timeout:1 attempts:1")
    found = meshkit.spawn(first_calls, ranks, (where(store),), timeout=60)
    # rank 0 looks on which hosts the others are, as there is a tp axis
    looks = Counter(check=1, multi_get=1) if store == "tcp" else Counter(check=1, get=ranks)
    found[0]["build_mesh"] = Counter(found[0]["build_mesh"]) - looks
    of_each = {call: {sum(one[call].values()) for one in found} for call in CALLS}
    # one look for a start that was given up, one for an attempt that is past; three more where
    # another rank has come before
    init = 18 if store == "tcp" else 16
    assert of_each.pop("init") <= {init, init + 3}
    assert of_each == {"build_mesh": {12}, "mesh.agree": {6}, "mesh.barrier": {2}}
    together = {call: sum((Counter(one[call]) for one in found), Counter()) for call in CALLS}
    looked = sum(sum(one["init"].values()) == init + 3 for one in found)
    wanted = expected(ranks, store)
    wanted["init"] += Counter(check=2 * ranks + looked, get=2 * looked)
    assert together == wanted


# --- the groups ------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, 4, 6, 8, 32, 128])
def test_torch_makes_the_groups_that_the_mesh_makes(ranks: int) -> None:
    layout = meshkit.factor_world(ranks, sp=2 if ranks % 4 == 0 else 1, tp=2)
    assert sizes_of(ranks) == layout.sizes
    steps = [step.members.tolist() for step in GroupPlan.of(layout).steps]
    planned = [tuple(group) for members in steps for group in members]
    raw = raw_groups(layout.shape)
    assert len(raw) == len(set(raw))
    assert set(raw) == set(planned) - {tuple(range(ranks))}
    assert len(raw) == len(planned) - 1


# --- what is timed ---------------------------------------------------------------------------


def test_both_meetings_of_build_mesh_are_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(*args: object, **options: object) -> int:
        stages.append(args[0].stage)
        time.sleep(0.05)
        return arrive(*args, **options)

    stages: list[str] = []
    arrive = meet.arrive
    meshkit.init(device="cpu", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        monkeypatch.setattr(meet, "arrive", slow)
        with meetings_timed(dist.group.WORLD) as seconds:
            meshkit.build_mesh(dp=1).close()
    finally:
        meshkit.shutdown()
    assert stages == ["", "the end of "]
    assert len(seconds) == 2
    assert min(seconds) >= 0.05
    assert agree.arrive is together.arrive is arrive


# --- the row ---------------------------------------------------------------------------------

SECONDS = [  # (ranks, repeats, TIMED)
    [[0.50, 0.125, 0.0625, 0.25, 0.03125], [1.0, 0.25, 0.25, 0.25, 0.03125]],
    [[0.75, 0.0625, 0.125, 0.125, 0.0625], [0.5, 0.50, 0.125, 0.50, 0.015625]],
]
COUNTS = [{"init": {"add": 4, "check": 1}}, {"init": {"add": 4, "get": 2}}]


def test_a_row_is_that_of_the_slowest_rank_repetition_by_repetition() -> None:
    exact = [[[Fraction(s) for s in repeat] for repeat in rank] for rank in SECONDS]
    repeats = [
        {name: max(rank[r][column] for rank in exact) for column, name in enumerate(TIMED)}
        for r in range(2)
    ]
    met = [repeat["first"] + repeat["second"] for repeat in repeats]
    wanted = {
        "build": [repeat["build"] for repeat in repeats],
        "agreement": met,
        "share": [100 * m / repeat["build"] for m, repeat in zip(met, repeats, strict=True)],
        "raw": [repeat["raw"] for repeat in repeats],
        "ratio": [repeat["build"] / repeat["raw"] for repeat in repeats],
        "barrier": [repeat["barrier"] for repeat in repeats],
    }
    found = row(2, COUNTS, SECONDS)
    for name, values in wanted.items():
        assert getattr(found, name).median == pytest.approx(float(median(values)))
        assert getattr(found, name) == Spread.of([float(v) for v in values])
    assert (found.build.median, found.agreement.median) == (0.875, 0.5)
    assert (found.share.low, found.share.high) == (43.75, 64.583333333333333)
    assert found.calls == {"init": {"all": (5, 6), "add": (4, 4), "check": (0, 1), "get": (0, 2)}}


REPORT = Report(
    cores=2,
    torch="2.13.0",
    store="file",
    repeats=2,
    rows=(
        row(2, COUNTS, SECONDS),
        Row(
            ranks=128,
            sizes={"dp": 32, "sp": 2, "tp": 2},
            build=Spread(1.0, 2.0, 12.0),
            agreement=Spread(0.1, 0.2, 0.3),
            share=Spread(9.0, 10.0, 100.0),
            raw=Spread(1.0, 1.5, 1.75),
            ratio=Spread(1.0, 1.25, 1.5),
            barrier=Spread(0.01, 0.02, 0.03),
            calls={"build_mesh": {"all": (12, 12), "wait": (1, 2)}},
        ),
    ),
)

TABLE = """\
2 cores, torch 2.13.0, gloo on cpu, file store; median (quartiles) of 2, slowest rank

ranks  build_mesh s             agreement s              share %               \
   new_group s              build/new_group          barrier s
    2  0.8750 (0.8125-0.9375)   0.5000 (0.3750-0.6250)   54.2 (43.8-64.6)      \
   0.3750 (0.3125-0.4375)   2.50 (2.25-2.75)         0.0469 (0.0391-0.0547)
  128  2.0000 (1.0000-12.0000)  0.2000 (0.1000-0.3000)   10.0 (9.0-100.0)      \
   1.5000 (1.0000-1.7500)   1.25 (1.00-1.50)         0.0200 (0.0100-0.0300)

Store operations of a rank from Python, least-most over ranks where they differ:

ranks  call                   all         add       check         get        wait
    2  init                   5-6           4         0-1         0-2           0
  128  build_mesh              12           0           0           0         1-2"""


def test_table_is_exactly_this() -> None:
    assert table(REPORT) == TABLE


# --- options ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["-n", "8", "3"], "3 is odd, but the mesh has tp=2"),
        (["-n", "0"], "'0' is not a whole number of 1 or more"),
        (["--repeats", "x"], "'x' is not a whole number of 1 or more"),
        (["--store", "etcd"], "invalid choice: 'etcd'"),
        (["--json", "/no/such/folder/x.json"], "--json /no/such/folder/x.json: no such folder"),
    ],
)
def test_wrong_options_are_refused_before_any_process_starts(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert told in capsys.readouterr().err


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


# --- a real run ------------------------------------------------------------------------------


def test_a_real_run_prints_its_table_and_writes_it(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.agreement", *f"-n 2 --repeats 2 --json {file}".split()],
        cwd=ROOT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(file.read_text())
    (only,) = report.pop("rows")
    about = {"cores": os.cpu_count(), "torch": torch.__version__, "store": "file", "repeats": 2}
    assert report == about
    assert (only["ranks"], only["sizes"]) == (2, {"dp": 1, "sp": 1, "tp": 2})
    init, *others = [only["calls"][call]["all"] for call in CALLS]
    assert 16 <= init[0] <= init[1] <= 19
    assert others == [[12, 12 + 3], [6, 6], [2, 2]]  # rank 0 looks for the hosts of both
    for name in ("build", "agreement", "share", "raw", "ratio", "barrier"):
        assert 0 < only[name]["low"] <= only[name]["median"] <= only[name]["high"]

    spreads = {k: Spread(**v) for k, v in only.items() if k not in ("ranks", "sizes", "calls")}
    calls = {c: {n: tuple(r) for n, r in found.items()} for c, found in only["calls"].items()}
    read = Row(only["ranks"], only["sizes"], **spreads, calls=calls)
    assert done.stdout == table(Report(**about, rows=(read,))) + "\n"
