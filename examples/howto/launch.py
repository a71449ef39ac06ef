"""Start the ranks of a job without a launcher: one process for each, with its variables.

Start it with ``python launch.py 4 hello.py``.
"""

import os
import socket
import subprocess
import sys

import meshkit


def free_port() -> int:
    """Return a port of this machine that no process uses."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def launch(ranks: int, program: list[str]) -> int:
    """Run a program on some ranks; return the first exit code that is not 0."""
    port, started = free_port(), []
    for rank in range(ranks):
        environ = dict(os.environ)
        world = meshkit.detect(
            {},
            rank=rank,
            world_size=ranks,
            local_rank=rank,
            master_addr="127.0.0.1",
            master_port=port,
        )
        world.export(environ)
        started.append(subprocess.Popen([sys.executable, *program], env=environ))
    codes = [process.wait() for process in started]
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(launch(int(sys.argv[1]), sys.argv[2:]))
