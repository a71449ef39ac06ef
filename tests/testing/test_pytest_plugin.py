"""The marker ``ranks``, in a pytest of its own, and the page that explains it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "testing.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
IS_INSTALLED = any(entry_points(group="pytest11", name="meshkit"))  # then pytest loads it itself

OWN = """
import helper, meshkit, pytest, torch
import torch.distributed as dist

@pytest.fixture
def size():
    return 2

@pytest.mark.ranks(2)
@pytest.mark.parametrize("factor", [1, 3])
def test_the_sum(factor, size, tmp_path):
    mesh = meshkit.build_mesh(dp=size)
    ones = torch.ones(1) * factor
    dist.all_reduce(ones, group=mesh.group("dp"))
    assert ones.item() == 2 * factor
    (tmp_path / str(mesh.rank)).touch()
    mesh.barrier(timeout=20)
    assert len(list(tmp_path.iterdir())) == helper.RANKS

class TestMethods:
    @pytest.mark.ranks(2)
    def test_one_rank_fails(self):
        assert meshkit.detect().rank == 0, "not the first"

@pytest.mark.ranks(2)
def test_skipped():
    pytest.skip("no accelerator")

@pytest.mark.ranks(2, timeout=1.5)
def test_too_slow():
    import time
    time.sleep(600)

@pytest.mark.ranks(2)
def test_not_picklable(capsys):
    pass

@pytest.mark.ranks
def test_without_a_number():
    pass

def test_of_one_process():
    pass
"""


@pytest.mark.parametrize("mode", ["prepend", pytest.param("importlib", marks=pytest.mark.slow)])
def test_tests_of_a_user_run_on_their_ranks_and_the_blocks_of_the_page_pass(
    tmp_path: Path, mode: str
) -> None:
    (tmp_path / "helper.py").write_text("RANKS = 2\n")
    (tmp_path / "test_own.py").write_text(OWN)
    for number, block in enumerate(BLOCKS):
        (tmp_path / f"test_block_{number}.py").write_text(block)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "--strict-markers"]
    command += [] if IS_INSTALLED else ["-p", "meshkit.testing.pytest_plugin"]
    command += ["-o", "pythonpath=."] if mode == "importlib" else []
    done = subprocess.run(
        [*command, f"--import-mode={mode}", "-rA"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    output = done.stdout + done.stderr
    passed = re.findall(r"^PASSED (\S+?)::(\S+)", output, re.MULTILINE)
    own = {name for file, name in passed if file == "test_own.py"}
    failed = set(re.findall(r"^FAILED \S+?::(\S+)", output, re.MULTILINE))
    assert own == {"test_the_sum[1]", "test_the_sum[3]", "test_of_one_process"}, output
    assert failed == {
        "TestMethods::test_one_rank_fails",
        *("test_too_slow", "test_not_picklable", "test_without_a_number"),
    }
    assert len(passed) == len(own) + len(BLOCKS) > len(own), output
    assert "rank 1 failed first, with AssertionError: not the first" in output
    assert 'assert meshkit.detect().rank == 0, "not the first"' in output
    assert "no accelerator" in output
    assert "still running after 1.5 s, killed" in output
    assert "the fixture capsys cannot be sent to the ranks." in output
    assert "Fix: a test without capsys." in output
    assert "the marker needs a number of ranks: @pytest.mark.ranks(4)" in output


def test_the_plugin_is_found_by_pytest_and_imports_neither_torch_nor_numpy() -> None:
    lines = '[project.entry-points.pytest11]\nmeshkit = "meshkit.testing.pytest_plugin"\n'
    assert lines in (ROOT / "pyproject.toml").read_text()
    code = "import meshkit.testing.pytest_plugin, sys\nprint({'torch', 'numpy'} & {*sys.modules})"
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "set()\n", done.stderr
