"""An uncaught error that is equal on several ranks of torchrun is printed once."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import torch.distributed as dist

from meshkit.launch.uncaught_error import find_printer, post_printed
from tests.launchers.test_refused import run

BAD_BATCH = """
import meshkit
meshkit.init()
mesh = meshkit.build_mesh(dp=-1)
mesh.batch(global_batch=100, micro_batch=7)
"""

OWN_ERROR = """
import time, meshkit
meshkit.init()
mesh = meshkit.build_mesh(dp=-1)
if mesh.rank == 1:
    mesh.size("nope")
time.sleep(60)
"""


def test_the_first_rank_prints_and_the_next_one_waits_until_it_has() -> None:
    store = dist.HashStore()
    assert find_printer(store, 2) == 2
    threading.Timer(0.2, post_printed, [store]).start()
    assert find_printer(store, 0, seconds=20) == 2
    assert find_printer(store, 2) == 2


def test_every_rank_prints_if_the_first_one_does_not() -> None:
    store = dist.HashStore()
    find_printer(store, 2)  # it ends before it prints
    began = time.monotonic()
    assert find_printer(store, 0, seconds=0.2) is None
    assert time.monotonic() - began > 0.15


def test_a_value_that_no_rank_wrote_makes_every_rank_print() -> None:
    store = dist.HashStore()
    store.set("printer", "x")
    assert find_printer(store, 0) is None


def test_a_bad_batch_is_printed_by_one_rank(tmp_path: Path) -> None:
    output, _, summary = run(2, tmp_path / "train.py", BAD_BATCH).partition("\n====")
    headline = "mesh.batch(global_batch=100, micro_batch=7)"
    assert output.count("  Fix: ") == 1
    assert output.count("]: Traceback") == 1  # of a rank
    # torchrun may end the other ranks before they print
    assert output.count(f"BatchError: {headline}") == 1 + output.count("prints the fix.")
    assert "Fix: " in summary


def test_an_error_of_one_rank_is_printed_in_full(tmp_path: Path) -> None:
    output, _, _ = run(2, tmp_path / "train.py", OWN_ERROR).partition("\n====")
    assert output.count("[rank1]: Traceback") == output.count("]: Traceback") == 1
    assert output.count("[rank1]:   Fix: ") == 1
    assert "prints the fix" not in output
