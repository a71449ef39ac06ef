"""``meshkit doctor``: its text, its JSON and its exit code, in real runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from meshkit.cli.commands import doctor
from meshkit.cli.main import main
from meshkit.launch.doctor import interfaces
from meshkit.launch.doctor.finding import Finding
from meshkit.launch.launchers.table import LAUNCHERS
from tests.preloaded_python import MESHKIT, run_python

ROOT = Path(__file__).parents[3]
Here = Callable[..., subprocess.CompletedProcess[str]]
FINDINGS = [
    Finding("python", True, "3.12.1"),
    Finding("launcher", False, "RANK=9 is wrong.\nIt was read.", "export RANK=0"),
    Finding("host name", False, "box has none", "echo"),
]


KNOWN = {name for row in LAUNCHERS for names in row.markers for name in names}
CLEAN = {name: value for name, value in os.environ.items() if name not in KNOWN}


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """The doctor in a real process, with no launcher but what is given."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "meshkit", "doctor", *arguments],
        env={**CLEAN, **environ},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    """The doctor in this process, which has imported torch."""
    for name in KNOWN:
        monkeypatch.delenv(name, raising=False)

    def ask(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        code = main(["doctor", *arguments])
        return subprocess.CompletedProcess(arguments, code, *capsys.readouterr())

    return ask


def results(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    """The findings of a run with --json, by name."""
    reported = json.loads(done.stdout)
    assert reported.keys() == {"ok", "findings"}
    assert reported["ok"] is all(one["ok"] for one in reported["findings"])
    assert done.returncode == (0 if reported["ok"] else 1)
    assert all(one.keys() == {"name", "ok", "found", "advice"} for one in reported["findings"])
    return {one["name"]: one for one in reported["findings"]}


def test_the_text_word_for_word() -> None:
    assert doctor.as_text(FINDINGS) == (
        "OK      python     3.12.1\n"
        "FAILED  launcher   RANK=9 is wrong.\n"
        "                   It was read.\n"
        "                   Fix: export RANK=0\n"
        "FAILED  host name  box has none\n"
        "                   Fix: echo\n"
        "\n"
        "2 of 3 checks failed: launcher, host name."
    )
    assert doctor.as_text(FINDINGS[:1]).endswith("\n\nAll 1 check OK.")


def test_the_json() -> None:
    reported = json.loads(doctor.as_json(FINDINGS))
    assert reported["ok"] is False
    assert reported["findings"][2] == {
        "name": "host name",
        "ok": False,
        "found": "box has none",
        "advice": "echo",
    }
    assert json.loads(doctor.as_json(FINDINGS[:1]))["ok"] is True


def test_the_deadline_is_that_of_the_network() -> None:
    assert doctor.DEADLINE == interfaces.DEADLINE


def test_a_real_run_looks_at_everything_promised() -> None:
    done = run_python(MESHKIT, "doctor", "--json", environ=CLEAN)
    assert done.stderr == ""
    findings = results(done)
    assert {
        *("python", "torch", "devices", "backends", "launcher", "rank", "world_size"),
        *("local_rank", "local_world_size", "node_rank", "num_nodes", "host name"),
        *("gloo interface", "shared memory"),
    } <= findings.keys()
    assert findings["launcher"]["found"] == "single"
    assert findings["rank"]["found"] == "0 (no launcher)"


def test_each_line_begins_with_ok_or_failed(here: Here) -> None:
    done = here()
    assert done.stdout.isascii()
    lines = done.stdout.splitlines()
    heads = [line[:6].strip() for line in lines[:-2]]
    assert set(heads) <= {"OK", "FAILED", ""}
    assert done.returncode == (1 if "FAILED" in heads else 0)
    assert lines[-1].startswith("All " if done.returncode == 0 else str(heads.count("FAILED")))


def test_a_bad_environment_is_shown_and_fails(here: Here) -> None:
    done = here(RANK="9", WORLD_SIZE="8")
    assert done.returncode == 1
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("FAILED  launcher "))
    indent = len(lines[at]) - len("RANK=9 must be below WORLD_SIZE=8.")
    assert [line[indent:] for line in lines[at : at + 3]] == [
        "RANK=9 must be below WORLD_SIZE=8.",
        "Both were read for the launcher hand-written.",
        "Fix: export RANK and WORLD_SIZE so that they agree.",
    ]
    assert "failed: launcher" in lines[-1]


def test_an_interface_that_is_not_there(here: Here) -> None:
    findings = results(here("--json", GLOO_SOCKET_IFNAME="eth77", NCCL_SOCKET_IFNAME="=eth78"))
    assert findings["gloo interface"]["found"] == (
        "GLOO_SOCKET_IFNAME=eth77, but this machine has no eth77"
    )
    assert findings["nccl interface"]["ok"] is False


def test_an_allocation_without_srun(here: Here) -> None:
    findings = results(here("--json", SLURM_NTASKS="4"))
    assert findings["launcher"]["ok"] is False
    assert findings["rank"]["found"] == "0 (no srun (SLURM_NTASKS = 4))"


def test_no_torch_is_a_finding_too(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libc10.so: wrong ELF class')\n")
    findings = results(run("--json", PYTHONPATH=str(tmp_path)))
    assert findings["torch"]["found"] == ("cannot be imported: OSError: libc10.so: wrong ELF class")
    assert "devices" not in findings
    assert "shared memory" in findings


HANGS = """
import socket, sys, time
import pytest
pytest.MonkeyPatch().setattr(socket, "getaddrinfo", lambda *_, **__: time.sleep(60))
sys.argv[0] = "meshkit"
from meshkit.cli.main import main
sys.exit(main())
"""


def test_a_resolver_that_never_answers_does_not_hang_the_doctor() -> None:
    began = time.monotonic()
    environ = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "far"}
    done = run_python(HANGS, "doctor", "--json", "--timeout", "0.2", environ=environ)
    assert time.monotonic() - began < 40
    findings = results(done)
    assert "has no address: no answer within 0.2 s (0." in findings["host name"]["found"]
    assert findings["master host"]["found"].startswith("far has no address: no answer within 0.2 s")


@pytest.mark.parametrize("text", ["0", "soon"])
def test_a_timeout_that_is_none_is_misuse(text: str) -> None:
    done = run("--timeout", text)
    assert done.returncode == 2
    assert done.stderr == (
        f"meshkit doctor --timeout {text}: --timeout: '{text}' is not a number of seconds from "
        "0.001 to 1e9.\n  Fix: for example meshkit doctor --json --timeout 2\n"
    )
