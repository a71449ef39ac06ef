"""Run the parts of ``.ci/gpu``, several at once: python tests/gpu/parts.py FOLDER [MPS_FOLDER].

``report.md`` of the folder gets the output of each part when it ends, and a table at the end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch

SECONDS = float(os.environ.get("GPU_SECONDS", "285"))  # for all parts together
JOBS = str(Path(__file__).with_name("jobs.py"))
GPU = torch.cuda.is_available()
SIDE_BY_SIDE = 4 if GPU else 1
PLUGINS = ("-p", "no:cacheprovider", "-p", "no:benchmark")
PYTEST = ("-m", "pytest", "-q", *PLUGINS, "--tb=short", "-rfE")
TRAIN = ("-m", "torch.distributed.run", "--nproc-per-node", "8", "examples/train.py")
BENCH = ("-m", "meshkit", "bench", "dp=2", "tp=2", "-n", "4", "--sizes", "64K:16M:256")
BENCH += ("--iters", "5", "--ops", "all_reduce,all_gather", "--device", "cuda:0" if GPU else "cpu")


class Part(NamedTuple):
    """The arguments of Python for a part, its limit in seconds, and whether MPS serves it."""

    name: str
    args: tuple[str, ...]
    limit: float
    is_healthy: bool = False


def job(name: str, limit: float, *, is_healthy: bool = False) -> Part:
    """Return the part that runs a job of ``jobs.py``."""
    return Part(name, (JOBS, *name.split()), limit, is_healthy)


ALONE = [job("speed", 40, is_healthy=True)]  # times need the whole GPU
INDEPENDENT = [
    job("again", 90),
    job("fault kill", 110),
    job("fault stop", 110),
    job("recover kill", 110),
    job("fault skip", 120),
    job("fault raise", 120),
    job("fault sleep", 120),
    job("recover stop", 110),
    *(job(f"hang {kind}", 100) for kind in ("mismatch", "order", "message")),
    job("error in mesh", 90),
    job("unequal", 100),
    job("groups", 80, is_healthy=True),
    job("moves", 60, is_healthy=True),
    job("norms", 60, is_healthy=True),
    job("equal", 60, is_healthy=True),
    job("memory", 60, is_healthy=True),
    Part("bench", BENCH, 80, is_healthy=True),
    Part(
        "train",
        (*TRAIN, "--dp", "4", "--sp", "2", "--steps", "40"),
        90,
        is_healthy=True,
    ),
    Part("tests/gpu", (*PYTEST, "-m", "gpu", "tests/gpu"), 150),
]
# many of these tests draw on the CPU, so not all of them can pass on a GPU
LIVE = ("groups", "redistribute", "norm", "data", "transfer", "guard", "recover")
LAST = [
    Part(
        "tests on nccl",
        (*PYTEST, "--tb=line", "-m", "not slow", *(f"tests/{folder}" for folder in LIVE)),
        285,
    )
]


class Report:
    """The file that gets the output of each part as it ends."""

    def __init__(self, folder: Path, mps: str) -> None:
        self.path, self.began, self.mps = folder / "report.md", time.monotonic(), mps
        self.rows: list[str] = []
        self.lock = threading.Lock()
        self.path.write_text("# A run of .ci/gpu\n\n")
        if not GPU:
            self.add(
                "**No GPU here: the parts ran on the CPU with gloo and show nothing of NCCL.**"
            )
        self.add("```text", *self.machine(), "```")

    def machine(self) -> list[str]:
        """Return what this run ran on."""
        commands = (
            "git log -1 --format=%h",
            "nvidia-smi --query-gpu=name,driver_version --format=csv",
        )
        lines = [_output(command) for command in commands]
        nccl = ".".join(map(str, torch.cuda.nccl.version())) if GPU else None
        cuda = torch.version.cuda
        lines.append(f"torch {torch.__version__}, CUDA {cuda}, NCCL {nccl}, {os.cpu_count()} cores")
        lines.append(f"MPS for the healthy parts: {'yes' if self.mps else 'no'}")
        return [line for line in lines if line]

    def add(self, *lines: str) -> None:
        """Add lines, and put them on the disk."""
        with self.path.open("a") as file:
            file.write("\n".join(lines) + "\n\n")
            file.flush()
            os.fsync(file.fileno())

    def run(self, part: Part) -> None:
        """Run one part within its limit and the time left; add its output."""
        left = self.began + SECONDS - time.monotonic()
        if left < 10:
            self.rows.append(f"| {part.name} | | not run: no time left |")
            return
        started = time.monotonic()
        status, log = run_part(part, min(part.limit, left), self.mps)
        seconds = time.monotonic() - started
        lines = [line[:1700] for line in log.splitlines() if line.strip()]
        with self.lock:
            self.rows.append(f"| {part.name} | {seconds:.0f} | {status} |")
            self.add(f"## {part.name}: {status}, {seconds:.0f} s", "```text", *lines[-70:], "```")
            print(self.rows[-1], flush=True)

    def close(self) -> None:
        """Add the table of all parts."""
        seconds = time.monotonic() - self.began
        table = ["| part | seconds | end |", "|---|---|---|", *self.rows]
        self.add("## Summary", "\n".join(table), f"In all {seconds:.0f} s.")


def run_part(part: Part, limit: float, mps: str) -> tuple[str, str]:
    """Run a part in a session of its own; return how it ended, and its output."""
    environ = dict(os.environ)
    if mps and part.is_healthy:
        environ |= {"CUDA_MPS_PIPE_DIRECTORY": mps, "CUDA_MPS_LOG_DIRECTORY": f"{mps}/log"}
    if GPU and part.name == "tests on nccl":
        environ["TESTS_DEVICE"] = "cuda:0"
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", *part.args],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    chunks: list[str] = []
    reader = threading.Thread(target=lambda: chunks.extend(process.stdout or ()), daemon=True)
    reader.start()
    try:
        code = process.wait(limit)
        status = "right" if code == 0 else f"exit {code}"
    except subprocess.TimeoutExpired:
        status = f"limit of {limit:.0f} s"
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # what it left behind, and a stopped rank
    process.wait()
    reader.join(5)
    return status, "".join(chunks)


def _output(command: str) -> str:
    """Return what a command prints, "" if it cannot run."""
    try:
        found = subprocess.run(command.split(), capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout.strip()


def main(folder: str, mps: str = "") -> int:
    """Run all parts, and return 0 if each was right; the tests on nccl may fail."""
    report = Report(Path(folder), mps)
    for part in ALONE:
        report.run(part)
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        list(pool.map(report.run, INDEPENDENT))
    for part in LAST:
        report.run(part)
    report.close()
    print(report.path)
    return int(any("right" not in row for row in report.rows if "tests on nccl" not in row))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
