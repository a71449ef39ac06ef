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
PAGE = (ROOT / "docs" / "how-to" / "pytest.md").read_text()
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


def run_pytest(folder: Path, *options: str) -> str:
    """Run pytest in a folder and return its output."""
    plugin = [] if IS_INSTALLED else ["-p", "meshkit.testing.pytest_plugin"]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "--strict-markers"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, *plugin, *options],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=240,
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("mode", ["prepend", pytest.param("importlib", marks=pytest.mark.slow)])
def test_a_test_of_a_user_runs_on_its_ranks(tmp_path: Path, mode: str) -> None:
    (tmp_path / "helper.py").write_text("RANKS = 2\n")
    (tmp_path / "test_own.py").write_text(OWN)
    paths = ["-o", "pythonpath=."] if mode == "importlib" else []
    output = run_pytest(tmp_path, f"--import-mode={mode}", *paths, "-rA")
    passed = set(re.findall(r"^PASSED \S+?::(\S+)", output, re.MULTILINE))
    failed = set(re.findall(r"^FAILED \S+?::(\S+)", output, re.MULTILINE))
    assert passed == {"test_the_sum[1]", "test_the_sum[3]", "test_of_one_process"}, output
    assert failed == {
        "TestMethods::test_one_rank_fails",
        *("test_too_slow", "test_not_picklable", "test_without_a_number"),
    }
    assert "rank 1 failed first, with AssertionError: not the first" in output
    assert 'assert meshkit.detect().rank == 0, "not the first"' in output
    assert "no accelerator" in output
    assert "still running after 1.5 s, killed" in output
    assert "the fixture capsys cannot be sent to the ranks." in output
    assert "Fix: a test without capsys." in output
    assert "the marker needs a number of ranks: @pytest.mark.ranks(4)" in output


def test_the_blocks_of_the_page_pass(tmp_path: Path) -> None:
    for number, block in enumerate(BLOCKS):
        (tmp_path / f"test_block_{number}.py").write_text(block)
    output = run_pytest(tmp_path)
    assert BLOCKS
    assert re.search(rf"^{len(BLOCKS)} passed", output, re.MULTILINE), output


def test_the_plugin_is_found_by_pytest() -> None:
    lines = '[project.entry-points.pytest11]\nmeshkit = "meshkit.testing.pytest_plugin"\n'
    assert lines in (ROOT / "pyproject.toml").read_text()


def test_the_plugin_imports_neither_torch_nor_hypothesis() -> None:
    code = "import meshkit.testing.pytest_plugin, sys\nprint({'torch', 'numpy'} & {*sys.modules})"
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "set()\n", done.stderr
