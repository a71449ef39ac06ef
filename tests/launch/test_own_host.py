"""Each rank on the one GPU of `.ci/gpu` names another host, also a rank that meshkit forks."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, meshkit

def name():
    return os.environ["NCCL_HOSTID"]

if __name__ == "__main__":
    print(len({os.environ["NCCL_HOSTID"], *meshkit.spawn(name, 3)}))
"""


def test_ranks_that_meshkit_forks_have_hosts_of_their_own(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    own = Path(__file__).parents[1] / "gpu" / "own_host"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(own), *sys.path])}
    command = [sys.executable, str(program)]
    found = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
    assert found.stdout.strip() == "4", found.stderr
