"""``meshkit doctor``: its text, its JSON and its exit code, in real runs."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import types
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit import detect
from meshkit.cli import doctor
from meshkit.cli.doctor import Finding, Lookup, check_launcher
from meshkit.launch import default_group, device
from meshkit.launch.detect import FIELDS
from tests.cli.processes import Answers, begun, ended
from tests.launch import recorded
from tests.preloaded_python import run_python
from tests.promises import BUSY

FINDINGS = [
    Finding("python", True, "3.12.1"),
    Finding("launcher", False, "RANK=9 is wrong.\nIt was read.", "export RANK=0"),
    Finding("host name", False, "box has none", "echo"),
]


def results(outcome: tuple[int, str, str]) -> dict[str, dict[str, Any]]:
    """The findings of a run with --json, by name."""
    code, out, error = outcome
    reported = json.loads(out)
    assert error == ""
    assert reported["ok"] is all(entry["ok"] for entry in reported["findings"])
    assert code == (0 if reported["ok"] else 1)
    return {entry["name"]: entry for entry in reported["findings"]}


def test_the_text_word_for_word() -> None:
    assert doctor.as_text(FINDINGS, width=80) == (
        "OK      python     3.12.1\n"
        "FAILED  launcher   RANK=9 is wrong.\n"
        "                   It was read.\n"
        "                   Fix: export RANK=0\n"
        "FAILED  host name  box has none\n"
        "                   Fix: echo\n"
        "\n"
        "2 of 3 checks failed: launcher, host name."
    )
    assert doctor.as_text(FINDINGS[:1], width=80).endswith("\n\nAll 1 check OK.")


def test_an_interface_that_is_not_there(answer: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth77")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "=eth78")
    findings = results(answer("doctor --json"))
    assert findings["gloo interface"]["found"] == (
        "GLOO_SOCKET_IFNAME=eth77, but this machine has no eth77"
    )
    assert findings["nccl interface"]["ok"] is False


def test_no_torch_is_a_finding_too(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libc10.so: wrong ELF class')\n")
    command = begun("-W", "error", "-m", "meshkit", "doctor", "--json", PYTHONPATH=str(tmp_path))
    findings = results(ended(command))
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
    environ = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "far"}
    done = run_python(HANGS, "doctor", "--json", "--timeout", "0.2", environ=environ)
    findings = results((done.returncode, done.stdout, done.stderr))
    assert "has no address: no answer within 0.2 s (0." in findings["host name"]["found"]
    assert findings["master host"]["found"].startswith("far has no address: no answer within 0.2 s")


# ---------------------------------------------------------------- one check

TWO_NODES = {
    **{"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"},
    **{"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"},
}
INTERFACES = ("lo", "eth0", "ib0", "eth1")


def fake_torch(**more: object) -> Any:
    version = types.SimpleNamespace(cuda=more.pop("cuda", None), hip=more.pop("hip", None))
    return types.SimpleNamespace(**{"__version__": "2.13.0", "version": version, **more})


def with_backends(*names: str, available: bool = True) -> Any:
    distributed = types.SimpleNamespace(
        is_available=lambda: available, is_backend_available=names.__contains__
    )
    return fake_torch(distributed=distributed)


@pytest.mark.parametrize(
    ("device_type", "backend", "cost", "ok", "text"),
    [
        ("cpu", "gloo", (0.0, 0), True, ""),
        ("cuda", "gloo", (0.0, 0), True, ""),  # nothing to bind
        ("cuda", "nccl", (0.416, 130_000_000), True, "on cuda:0: 0.42 s, 130 MB\ninit(bind=False)"),
        ("cuda", "nccl2", (0.416, 1_300_000_000), True, "on cuda:0: 0.42 s, 1.3 GB\ninit(bind"),
        ("cuda", "nccl", RuntimeError("NCCL error\nat"), False, "nccl on cuda:0: NCCL error"),
    ],
)
def test_the_cost_of_the_binding_is_measured_where_a_group_can_be_bound(
    device_type: str, backend: str, cost: Any, ok: bool, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uses a fake of the measurement, which needs a GPU: tests/gpu runs it."""

    def measure(device: torch.device, name: str) -> tuple[float, int]:
        assert (str(device), name) == ("cuda:0", backend)
        if isinstance(cost, Exception):
            raise cost
        return cost  # type: ignore[no-any-return]

    monkeypatch.setattr(default_group, "measure_binding", measure)
    monkeypatch.setattr(device, "accelerator", lambda: None if device_type == "cpu" else "cuda")
    monkeypatch.setattr(device, "select_backend", lambda requested, device: backend)
    findings = doctor.check_binding(torch, device_type)
    assert [(found.name, found.ok, bool(found.advice)) for found in findings] == (
        [("binding", ok, not ok)] if text else []
    )
    assert all(text in found.found for found in findings)


def test_the_binding_of_a_group_of_one_rank_is_measured_and_undone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Uses gloo for the group, and a fake of the module of the device."""
    free = iter([5_000_000, 2_000_000])
    module = types.SimpleNamespace(
        set_device=lambda device: None,
        mem_get_info=lambda device: (next(free), 8_000_000),
        synchronize=lambda device: None,
    )
    seen: list[object] = []
    create = dist.init_process_group

    def init_process_group(backend: str, *, device_id: torch.device, **options: Any) -> None:
        seen.append((backend, device_id))
        create("gloo", **options)

    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    monkeypatch.setattr(dist, "init_process_group", init_process_group)
    seconds, size = default_group.measure_binding(torch.device("cpu"), "nccl")
    assert (seen, size, dist.is_initialized()) == (
        [("nccl", torch.device("cpu"))],
        3_000_000,
        False,
    )
    assert 0 < seconds < BUSY


def lookup(*addresses: str, seconds: float = 0.0) -> Finding:
    return doctor.check_lookup("host name", "box", Lookup(addresses, "", seconds))


def loopback(env: dict[str, str], ranks: str = "4", address: str = "127.0.1.1") -> Finding:
    world = detect({**TWO_NODES, "WORLD_SIZE": ranks})
    return doctor.check_host_name("box", Lookup((address,), "", 0.0), world, env)


def interface(backend: str, value: str) -> Finding:
    return doctor.check_variable(backend, {f"{backend.upper()}_SOCKET_IFNAME": value}, INTERFACES)


def last_of_launcher(**env: str) -> Finding:
    return check_launcher(env)[1][-1]


CHECKS: list[tuple[Finding, bool, str]] = [
    (doctor.check_python((3, 10, 0)), True, "3.10.0"),
    (doctor.check_python((3, 9, 19)), False, "use Python 3.10 or newer."),
    *(
        (doctor.check_version(fake_torch(__version__=version)), True, "neither CUDA nor HIP")
        for version in ("2.11.0", "2.13.0+cpu", "2.12.0a0+git12", "3.0")
    ),
    *(
        (doctor.check_version(fake_torch(__version__=version, cuda="12.4")), False, "CUDA 12.4")
        for version in ("2.5.1+cu124", "2.10.0", "1.13.1", "unknown")
    ),
    (doctor.check_backends(with_backends("gloo", "mpi"), "cpu"), True, "not built in: nccl ucc"),
    (doctor.check_backends(with_backends(*doctor.BACKENDS), "cuda"), True, "mpi ucc xccl"),
    (doctor.check_backends(with_backends("gloo", "hccl"), "npu"), True, "gloo hccl; not built in"),
    (doctor.check_backends(with_backends("gloo"), "cuda"), False, "none of them supports cuda"),
    (doctor.check_backends(with_backends(available=False), "cpu"), False, "gloo or mpi."),
    (lookup("10.0.0.3", "10.0.0.4"), True, "box is 10.0.0.3, 10.0.0.4 (0.00 s)"),
    (lookup("10.0.0.3", seconds=5.01), False, "echo '10.0.0.3 box' >> /etc/hosts"),
    (loopback({}), False, "no other node can reach that address"),
    (loopback({}, ranks="5"), False, "export GLOO_SOCKET_IFNAME="),  # nodes that differ
    (loopback({"GLOO_SOCKET_IFNAME": "eth0"}), True, "127.0.1.1"),
    (loopback({}, ranks="2"), True, "127.0.1.1"),  # one node
    (loopback({}, address="10.0.0.3"), True, "10.0.0.3"),
    *((interface("gloo", value), True, value) for value in ("eth0,ib0", "")),
    *((interface("nccl", value), True, value) for value in ("ib,eth", "=eth0:1", "^lo,docker")),
    *((interface("gloo", value), False, f"has no {value}") for value in ("eth7", "eth")),
    *((interface("nccl", value), False, "one of lo, eth0, ib0") for value in ("=eth", "wlan")),
    (
        last_of_launcher(RANK="0", WORLD_SIZE="8", MASTER_ADDR="a"),
        False,
        "the address of rank 0 is unknown: MASTER_ADDR=a, MASTER_PORT=None",
    ),
    (last_of_launcher(**recorded.OPEN_MPI_4), True, "one node: a file"),
    (check_launcher({"SLURM_NTASKS": "4"})[1][0], False, "srun python -m meshkit doctor"),
    (check_launcher({"RANK": "9", "WORLD_SIZE": "8"})[1][0], False, "so that they agree."),
]


@pytest.mark.parametrize(("finding", "ok", "text"), CHECKS, ids=range(len(CHECKS)))
def test_a_check_has_advice_if_it_fails(finding: Finding, ok: bool, text: str) -> None:
    assert (finding.ok, bool(finding.advice)) == (ok, not ok)
    assert text in f"{finding.found}\n{finding.advice}"


def by_name(findings: Sequence[Finding]) -> dict[str, Finding]:
    """Return findings by their names, which must be unique."""
    names = [finding.name for finding in findings]
    assert len(names) == len(set(names))
    return dict(zip(names, findings, strict=True))


def test_the_findings_of_this_process_and_their_order() -> None:
    findings = by_name(doctor.checkup({}))
    assert list(findings)[:4] == ["python", "torch", "devices", "backends"]
    assert list(findings)[4:12] == ["launcher", *FIELDS, "host name"]
    assert list(findings)[-3:] == ["gloo interface", "nccl interface", "shared memory"]
    assert findings["python"].found == ".".join(map(str, sys.version_info[:3]))
    assert findings["torch"].found.startswith(f"{torch.__version__}, built for ")
    assert findings["launcher"] == Finding("launcher", True, "single")


@pytest.mark.parametrize(("blocks", "ok", "size"), [(2**18, True, "1.00"), (2**14, False, "0.06")])
def test_the_size_of_shared_memory(
    monkeypatch: pytest.MonkeyPatch, blocks: int, ok: bool, size: str
) -> None:
    stats = types.SimpleNamespace(f_blocks=blocks, f_frsize=4096)
    monkeypatch.setattr(doctor.os, "statvfs", lambda _: stats)
    finding = doctor.check_shared_memory()
    assert (finding.ok, finding.found) == (ok, f"{size} GiB in /dev/shm")


def test_missing_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for platform in ("linux", "darwin"):
        monkeypatch.setattr(doctor.sys, "platform", platform)
        finding = doctor.check_shared_memory("/no/such")
        assert (finding.ok, finding.found) == (platform == "darwin", "no /no/such")


def test_each_field_has_its_source() -> None:
    world, findings = check_launcher({**TWO_NODES, "TORCHELASTIC_RUN_ID": "x"})
    assert world is not None
    assert {f.name: f.found for f in findings} == {
        "launcher": "torchrun",
        "rank": "1 (RANK)",
        "world_size": "4 (WORLD_SIZE)",
        "local_rank": "1 (LOCAL_RANK)",
        "local_world_size": "2 (LOCAL_WORLD_SIZE)",
        "node_rank": "unknown until init",
        "num_nodes": "unknown until init",
        "master_addr": "localhost (MASTER_ADDR)",
        "master_port": "29500 (MASTER_PORT)",
    }
    env = {"TORCHELASTIC_RUN_ID": "x", "RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}
    unknown = by_name(check_launcher(env)[1])
    assert unknown["num_nodes"].found == "unknown until init"
    assert "master_addr" not in unknown


@pytest.mark.parametrize("name", recorded.ALL)
def test_the_doctor_reads_the_tables_of_init(name: str) -> None:
    world, findings = check_launcher(recorded.ALL[name])
    assert world == meshkit.detect(recorded.ALL[name])
    launcher = by_name(findings)["launcher"]
    assert launcher.ok == (world.allocation is None)
    assert (world.allocation or world.launcher) in launcher.found


@pytest.mark.parametrize("there", [True, False])
def test_ranks_of_mpi_need_mpi4py(monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", types.ModuleType("mpi4py") if there else None)
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    values = zip(names, "1412", strict=True)  # four ranks, two of them on this node
    finding = last_of_launcher(**{f"OMPI_COMM_WORLD_{name}": v for name, v in values})
    assert finding.ok is there
    assert finding.advice.startswith("pip install mpi4py, or ") is not there


def test_an_init_method_needs_no_address() -> None:
    env = {"MESHKIT_SPAWN": "file:///x", **dict.fromkeys(("RANK", "LOCAL_RANK"), "0")}
    env |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), "2")
    assert last_of_launcher(**env) == Finding("init_method", True, "file:///x (MESHKIT_SPAWN)")


# ---------------------------------------------------------------- names


def fake_resolver(monkeypatch: pytest.MonkeyPatch, *addresses: str, host: str = "box") -> None:
    """Let every host name have these addresses; without any, its lookup fails."""

    def forward(name: str, *_: object, **__: object) -> list[Any]:
        if not addresses:
            raise socket.gaierror(-2, "Name or service not known")
        return [(2, 1, 6, "", (address, 0)) for address in addresses]

    monkeypatch.setattr(socket, "gethostname", lambda: host)
    monkeypatch.setattr(socket, "getaddrinfo", forward)
    monkeypatch.setattr(socket, "getnameinfo", lambda address, _: (f"name-of-{address[0]}", "0"))


def test_names_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_resolver(monkeypatch)
    findings = by_name(doctor.check_interfaces(None, {}))
    assert "reverse name" not in findings
    assert findings["host name"].found.startswith("box has no address: [Errno -2] Name or service")
    fake_resolver(monkeypatch, "10.0.0.3", "10.0.0.3", "10.0.0.4")
    assert doctor.look_up_addresses("box").values == ("10.0.0.3", "10.0.0.4")
    findings = by_name(doctor.check_interfaces(detect(TWO_NODES), {}))
    assert findings["master host"].found.startswith("localhost is 10.0.0.3, 10.0.0.4 (")
    fake_resolver(monkeypatch, "10.0.0.3", host="localhost")
    assert "master host" not in by_name(doctor.check_interfaces(detect(TWO_NODES), {}))


def test_a_slow_reverse_lookup_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_resolver(monkeypatch, "10.0.0.3")
    asked = list[str]()

    def never_answers(address: tuple[str, int], _: int) -> tuple[str, str]:
        asked.append(address[0])
        time.sleep(30)
        return "", ""

    monkeypatch.setattr(socket, "getnameinfo", never_answers)
    findings = by_name(doctor.check_interfaces(None, {}, deadline=1.2))
    for name, address in ("reverse name", "10.0.0.3"), ("loopback name", "127.0.0.1"):
        assert findings[name].ok is False
        assert findings[name].found.startswith(f"::ffff:{address}: no answer within 1.2 s (1.")
        assert f"echo '::ffff:{address} " in findings[name].advice
    assert asked == ["::ffff:10.0.0.3", "::ffff:127.0.0.1"]  # as torch's store looks them up


# ---------------------------------------------------------------- torch


def test_an_old_or_missing_torch_is_checked_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (fake_torch(__version__="2.5.0"), None):
        monkeypatch.setitem(sys.modules, "torch", module)
        (finding,) = doctor.check_torch({})
        assert (finding.name, finding.ok) == ("torch", False)
        assert finding.advice == "pip install 'torch>=2.11'"


def name_of(index: int) -> str:
    """Return the names of two devices; torch has none for the third."""
    if index == 2:
        raise RuntimeError("no name")
    return "NVIDIA H200"


def fake_devices(monkeypatch: pytest.MonkeyPatch, kind: str | None, *drivers: str) -> None:
    """Let torch see three devices of a kind, or none, and let drivers exist."""
    devices = types.SimpleNamespace(device_count=lambda: 3, get_device_name=name_of)
    monkeypatch.setattr(device, "accelerator", lambda: kind)
    monkeypatch.setattr(torch, "get_device_module", lambda _: devices)
    if kind is None:
        monkeypatch.setattr(Path, "exists", lambda self: str(self) in drivers)


def test_devices_are_counted_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_devices(monkeypatch, "cuda")
    kind, finding = doctor.check_devices(torch, {})
    assert kind == "cuda"
    assert finding == Finding("devices", True, "cuda: 2 x NVIDIA H200, 1 x cuda")


def test_a_driver_without_devices_that_torch_sees_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_available() -> bool:
        warnings.warn("CUDA initialization: the driver is too old", UserWarning, stacklevel=1)
        return False

    fake_devices(monkeypatch, None)
    assert doctor.check_devices(torch, {}) == ("cpu", Finding("devices", True, "cpu only"))
    fake_devices(monkeypatch, None, "/dev/nvidiactl")
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    _, finding = doctor.check_devices(torch, {})
    assert not finding.ok
    assert finding.found.endswith("NVIDIA is installed\nCUDA initialization: the driver is too old")
    assert finding.advice.startswith("nvidia-smi, then")
    _, hidden = doctor.check_devices(torch, {"CUDA_VISIBLE_DEVICES": ""})
    assert hidden == Finding("devices", True, "cpu only (CUDA_VISIBLE_DEVICES='')")


def test_an_amd_graphics_driver_counts_only_for_a_torch_with_hip(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake_devices(monkeypatch, None, "/dev/kfd")
    monkeypatch.setattr(torch.version, "hip", None)
    assert doctor.check_devices(torch, {})[1].ok
    monkeypatch.setattr(torch.version, "hip", "6.2")
    assert doctor.check_devices(torch, {})[1].advice.startswith("rocm-smi, then")


def test_a_bridge_that_cannot_be_imported_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: str) -> None:
        raise ImportError("no libhcl.so")

    fake_devices(monkeypatch, "npu")
    monkeypatch.setattr(device, "import_module", broken)
    kind, finding = doctor.check_devices(torch, {})
    assert (kind, finding.ok) == ("cpu", False)
    assert finding.found.endswith("makes torch know npu.\nImportError: no libhcl.so")


def test_a_finding_keeps_the_width_and_a_fix_stays_one_line() -> None:
    width = 60
    advice = "mount -t tmpfs tmpfs " + "/very/long" * 12
    findings = [Finding("python", True, "word " * 50), Finding("memory", False, "none", advice)]
    *lines, fix, _, _ = doctor.as_text(findings, width=width).split("\n")
    assert width - 5 < max(map(len, lines)) <= width
    assert fix.strip() == f"Fix: {advice}"
