"""Run torch's own tests of DeviceMesh on meshkit's groups.

    python .ci/torch_tests.py          the tests of the installed torch, fetched from its repository
    python .ci/torch_tests.py FILE     another copy of test/distributed/test_device_mesh.py

The tests run twice: with torch's ``init_device_mesh``, and with meshkit's in its place. Each test
that passes with torch's must pass with meshkit's. Tests that need a GPU skip themselves. A test
whose ranks wait for each other ends after 120 s, and is named. At night or by hand, not in the
gate: it takes minutes, and needs the network, without which it skips.
Needs ``pip install expecttest``.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import urllib.request
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import torch

NAME = "test_device_mesh.py"
LIMIT = 120  # seconds of one test, after which torch ends its ranks, and it fails
LONGEST = 3600  # seconds of a run of all tests
LATE = "timed out after"  # what torch says of a test that it has ended
ADDRESS = "https://raw.githubusercontent.com/pytorch/pytorch/v{}/test/distributed/" + NAME
# the tests start processes, which import the file again, so it replaces the name itself
HEAD = """import torch.distributed.device_mesh
import meshkit
torch.distributed.device_mesh.init_device_mesh = meshkit.init_device_mesh
"""


def main() -> int:
    """Compare both runs; return 1 if a test fails on meshkit's groups only."""
    version = torch.__version__.partition("+")[0]
    try:
        text = Path(sys.argv[1]).read_text() if sys.argv[1:] else fetch(version)
    except OSError as error:
        sys.stdout.write(f"skipped: {NAME} of torch {version} cannot be read: {error}\n")
        return 0
    with_torch, with_meshkit = run(text), run(HEAD + text)
    passed = {name for name, outcome in with_torch.items() if outcome == "passes"}
    late = {name for name, outcome in with_torch.items() if outcome.startswith("runs")}
    failed = {name: with_meshkit.get(name, "is missing") for name in passed}
    failed = {name: outcome for name, outcome in failed.items() if outcome != "passes"}
    for name in sorted(late):
        sys.stdout.write(f"does not count, as it {with_torch[name]} on torch's groups: {name}\n")
    for name, outcome in sorted(failed.items()):
        sys.stdout.write(f"{outcome} on meshkit's groups: {name}\n")
    count = f"{len(passed) - len(failed)} of {len(passed)}"
    sys.stdout.write(f"torch {version}: {count} tests of {NAME} pass as with torch\n")
    return int(bool(failed) or not passed)


def fetch(version: str) -> str:
    """Return torch's file at the tag of a version."""
    with urllib.request.urlopen(ADDRESS.format(version), timeout=60) as answer:
        content: bytes = answer.read()
    return content.decode()


def run(text: str) -> dict[str, str]:
    """Return the outcome of each test by its name."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, NAME).write_text(text)
        variables = ["CUDA_VISIBLE_DEVICES=", f"DISTRIBUTED_TESTS_DEFAULT_TIMEOUT={LIMIT}"]
        command = ["env", *variables, sys.executable, "-m", "pytest", "-q"]
        command += ["-p", "no:cacheprovider", "--junitxml=report.xml", NAME]
        subprocess.run(command, cwd=folder, check=False, timeout=LONGEST)
        cases = ElementTree.parse(Path(folder, "report.xml")).iter("testcase")
        return {f"{case.get('classname')}.{case.get('name')}": outcome_of(case) for case in cases}


def outcome_of(case: ElementTree.Element) -> str:
    """Return what a test did: a verb."""
    if not len(case):
        return "passes"
    if case.find("skipped") is not None:
        return "skips itself"
    is_late = any(LATE in (part.text or "") for part in case)
    return f"runs longer than {LIMIT} s" if is_late else "fails"


if __name__ == "__main__":
    sys.exit(main())
