"""The whole checkup, and the checks of Python and of shared memory. No rank is started."""

from __future__ import annotations

import sys
import types

import pytest
import torch

from meshkit.launch.doctor import checkup
from meshkit.launch.doctor.finding import Finding
from meshkit.launch.launchers.detect import FIELDS
from tests.launch.doctor.findings import by_name, fake_resolver


def test_the_findings_of_this_process_and_their_order() -> None:
    findings = by_name(checkup.checkup({}))
    assert list(findings)[:4] == ["python", "torch", "devices", "backends"]
    assert list(findings)[4:12] == ["launcher", *FIELDS, "host name"]
    last = [name for name in findings if name != "nccl interface"][-2:]
    assert last == ["gloo interface", "shared memory"]
    assert ("nccl interface" in findings) is torch.distributed.is_nccl_available()
    assert findings["python"].found == ".".join(map(str, sys.version_info[:3]))
    assert findings["torch"].found.startswith(f"{torch.__version__}, built for ")
    assert "gloo" in findings["backends"].found
    assert findings["launcher"] == Finding("launcher", True, "single")


def test_every_failed_check_has_advice_and_no_other_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake_resolver(monkeypatch)
    env = {"RANK": "9", "WORLD_SIZE": "8", "NCCL_SOCKET_IFNAME": "=no0"}
    findings = checkup.checkup(env)
    assert {f.name for f in findings if not f.ok} >= {
        *("launcher", "host name", "gloo interface", "nccl interface")
    }
    for finding in findings:
        assert finding.ok == (not finding.advice)


@pytest.mark.parametrize(("version", "ok"), [((3, 10, 0), True), ((3, 9, 19), False)])
def test_the_oldest_python(version: tuple[int, ...], ok: bool) -> None:
    finding = checkup.check_python(version)
    assert finding.ok is ok
    assert finding.advice == ("" if ok else "use Python 3.10 or newer.")


@pytest.mark.parametrize(("blocks", "ok", "size"), [(2**18, True, "1.00"), (2**14, False, "0.06")])
def test_the_size_of_shared_memory(
    monkeypatch: pytest.MonkeyPatch, blocks: int, ok: bool, size: str
) -> None:
    stats = types.SimpleNamespace(f_blocks=blocks, f_frsize=4096)
    monkeypatch.setattr(checkup.os, "statvfs", lambda _: stats)
    finding = checkup.check_shared_memory()
    advice = "" if ok else "docker run --ipc=host, or --shm-size=8g."
    assert finding == Finding("shared memory", ok, f"{size} GiB in /dev/shm", advice)


def test_missing_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup.sys, "platform", "linux")
    finding = checkup.check_shared_memory("/no/such")
    assert finding == Finding(
        "shared memory", False, "no /no/such", "mount -t tmpfs tmpfs /no/such"
    )
    monkeypatch.setattr(checkup.sys, "platform", "darwin")
    assert checkup.check_shared_memory("/no/such") == Finding("shared memory", True, "no /no/such")
