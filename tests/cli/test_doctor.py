"""``meshkit doctor``: its text, its JSON and its exit code, in real runs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import types
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from meshkit import LaunchError, detect
from meshkit.cli import doctor
from meshkit.cli.doctor import Finding, Lookup, check_launcher
from meshkit.cli.main import main
from meshkit.launch import device
from meshkit.launch.detect import FIELDS
from meshkit.launch.launchers import LAUNCHERS
from tests.launch import recorded
from tests.preloaded_python import MESHKIT, run_python

ROOT = Path(__file__).parents[2]
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
    assert reported["ok"] is all(entry["ok"] for entry in reported["findings"])
    assert done.returncode == (0 if reported["ok"] else 1)
    assert all(entry.keys() == {"name", "ok", "found", "advice"} for entry in reported["findings"])
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
    environ = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "far"}
    done = run_python(HANGS, "doctor", "--json", "--timeout", "0.2", environ=environ)
    findings = results(done)
    assert "has no address: no answer within 0.2 s (0." in findings["host name"]["found"]
    assert findings["master host"]["found"].startswith("far has no address: no answer within 0.2 s")


@pytest.mark.parametrize("text", ["0", "soon"])
def test_a_timeout_that_is_none_is_misuse(text: str) -> None:
    done = run("--timeout", text)
    assert done.returncode == 2
    assert done.stderr.startswith(f"meshkit doctor --timeout {text}: ")


# ---------------------------------------------------------------- launcher, Python, memory

TWO_NODES = {
    "RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
}
INTERFACES = ("lo", "eth0", "ib0", "eth1")


def by_name(findings: Sequence[Finding]) -> dict[str, Finding]:
    """Return findings by their names, which must be unique."""
    names = [finding.name for finding in findings]
    assert len(names) == len(set(names))
    return dict(zip(names, findings, strict=True))


def fake_resolver(monkeypatch: pytest.MonkeyPatch, *addresses: str, host: str = "box") -> None:
    """Let every host name have these addresses; without any, its lookup fails."""

    def forward(name: str, *_: object, **__: object) -> list[Any]:
        if not addresses:
            raise socket.gaierror(-2, "Name or service not known")
        return [(2, 1, 6, "", (address, 0)) for address in addresses]

    monkeypatch.setattr(socket, "gethostname", lambda: host)
    monkeypatch.setattr(socket, "getaddrinfo", forward)
    monkeypatch.setattr(socket, "getnameinfo", lambda address, _: (f"name-of-{address[0]}", "0"))


def test_the_findings_of_this_process_and_their_order() -> None:
    findings = by_name(doctor.checkup({}))
    assert list(findings)[:4] == ["python", "torch", "devices", "backends"]
    assert list(findings)[4:12] == ["launcher", *FIELDS, "host name"]
    assert list(findings)[-3:] == ["gloo interface", "nccl interface", "shared memory"]
    assert findings["python"].found == ".".join(map(str, sys.version_info[:3]))
    assert findings["torch"].found.startswith(f"{torch.__version__}, built for ")
    assert "gloo" in findings["backends"].found
    assert findings["launcher"] == Finding("launcher", True, "single")


def test_every_failed_check_has_advice_and_no_other_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake_resolver(monkeypatch)
    env = {"RANK": "9", "WORLD_SIZE": "8", "NCCL_SOCKET_IFNAME": "=no0"}
    findings = doctor.checkup(env)
    assert {f.name for f in findings if not f.ok} >= {*("launcher", "host name", "nccl interface")}
    for finding in findings:
        assert finding.ok == (not finding.advice)


@pytest.mark.parametrize(("version", "ok"), [((3, 10, 0), True), ((3, 9, 19), False)])
def test_the_oldest_python(version: tuple[int, ...], ok: bool) -> None:
    finding = doctor.check_python(version)
    assert finding.ok is ok
    assert finding.advice == ("" if ok else "use Python 3.10 or newer.")


@pytest.mark.parametrize(("blocks", "ok", "size"), [(2**18, True, "1.00"), (2**14, False, "0.06")])
def test_the_size_of_shared_memory(
    monkeypatch: pytest.MonkeyPatch, blocks: int, ok: bool, size: str
) -> None:
    stats = types.SimpleNamespace(f_blocks=blocks, f_frsize=4096)
    monkeypatch.setattr(doctor.os, "statvfs", lambda _: stats)
    finding = doctor.check_shared_memory()
    advice = "" if ok else "docker run --ipc=host, or --shm-size=8g."
    assert finding == Finding("shared memory", ok, f"{size} GiB in /dev/shm", advice)


def test_missing_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.sys, "platform", "linux")
    finding = doctor.check_shared_memory("/no/such")
    assert finding == Finding(
        "shared memory", False, "no /no/such", "mount -t tmpfs tmpfs /no/such"
    )
    monkeypatch.setattr(doctor.sys, "platform", "darwin")
    assert doctor.check_shared_memory("/no/such") == Finding("shared memory", True, "no /no/such")


def test_each_field_has_its_source() -> None:
    world, findings = check_launcher({**TWO_NODES, "TORCHELASTIC_RUN_ID": "x"})
    assert world is not None
    assert {f.name: f.found for f in findings} == {
        "launcher": "torchrun",
        "rank": "1 (RANK)",
        "world_size": "4 (WORLD_SIZE)",
        "local_rank": "1 (LOCAL_RANK)",
        "local_world_size": "2 (LOCAL_WORLD_SIZE)",
        "node_rank": "0 (rank // local_world_size)",
        "num_nodes": "2 (world_size // local_world_size)",
        "master_addr": "localhost (MASTER_ADDR)",
        "master_port": "29500 (MASTER_PORT)",
    }
    assert all(f.ok for f in findings)


def test_a_field_that_the_launcher_does_not_set_is_unknown() -> None:
    env = {"TORCHELASTIC_RUN_ID": "x", "RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}
    findings = by_name(check_launcher(env)[1])
    assert findings["num_nodes"] == Finding("num_nodes", True, "unknown")
    assert "master_addr" not in findings


def test_contradicting_variables_give_the_text_of_detect() -> None:
    env = {"RANK": "9", "WORLD_SIZE": "8"}
    world, findings = check_launcher(env)
    with pytest.raises(LaunchError) as caught:
        detect(env)
    assert world is None
    assert findings == [
        Finding(
            "launcher",
            False,
            "RANK=9 must be below WORLD_SIZE=8.\nBoth were read for the launcher hand-written.",
            "export RANK and WORLD_SIZE so that they agree.",
        )
    ]
    error = caught.value
    assert findings[0].found.split("\n") == [error.summary, *error.evidence]
    assert findings[0].advice == error.fix_text


def test_a_single_process_in_an_allocation_fails() -> None:
    _, findings = check_launcher({"SLURM_NTASKS": "4"})
    assert findings[0] == Finding(
        "launcher",
        False,
        "single: a single process in an allocation of several tasks (SLURM_NTASKS = 4)",
        "srun python -m meshkit doctor; ignore this if one process is intended.",
    )


def test_ranks_without_an_address_of_rank_0_fail() -> None:
    _, findings = check_launcher({"RANK": "0", "WORLD_SIZE": "8", "MASTER_ADDR": "a"})
    assert findings[-1] == Finding(
        "rendezvous",
        False,
        "the address of rank 0 is unknown: MASTER_ADDR=a, MASTER_PORT=None",
        "export MASTER_ADDR=<host of rank 0> MASTER_PORT=29500",
    )


@pytest.mark.parametrize("there", [True, False])
def test_ranks_of_mpi_need_mpi4py(monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", types.ModuleType("mpi4py") if there else None)
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    values = zip(names, "1412", strict=True)  # four ranks, two of them on this node
    _, findings = check_launcher({f"OMPI_COMM_WORLD_{name}": v for name, v in values})
    text = "the address of rank 0 is unknown: MASTER_ADDR=None, MASTER_PORT=None, "
    text += "and mpi4py is not installed"
    advice = "pip install mpi4py, or export MASTER_ADDR=<host of rank 0> MASTER_PORT=29500"
    missing = Finding("rendezvous", False, text, advice)
    assert findings[-1] == (
        Finding("rendezvous", True, "rank 0 sends its address through mpi4py") if there else missing
    )


def test_an_init_method_needs_no_address() -> None:
    env = {"MESHKIT_SPAWN": "file:///x", **dict.fromkeys(("RANK", "LOCAL_RANK"), "0")}
    env |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), "2")
    _, findings = check_launcher(env)
    assert findings[-1] == Finding("init_method", True, "file:///x (MESHKIT_SPAWN)")


def test_ranks_of_mpi_on_one_node_need_nothing() -> None:
    _, findings = check_launcher(recorded.OPEN_MPI_4)
    text = "one node: a file that is named after the launcher"
    assert findings[-1] == Finding("rendezvous", True, text)


# ---------------------------------------------------------------- names and interfaces


def test_a_host_name_with_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_resolver(monkeypatch, "10.0.0.3", "10.0.0.3", "10.0.0.4")
    lookup = doctor.look_up_addresses("box")
    assert lookup.values == ("10.0.0.3", "10.0.0.4")
    finding = doctor.check_lookup("host name", "box", Lookup(lookup.values, "", 0.001))
    assert finding == Finding("host name", True, "box is 10.0.0.3, 10.0.0.4 (0.00 s)")


def test_a_host_name_without_an_address_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_resolver(monkeypatch)
    findings = by_name(doctor.check_interfaces(None, {}))
    assert "reverse name" not in findings
    assert not findings["host name"].ok
    start = "box has no address: [Errno -2] Name or service not known ("
    assert findings["host name"].found.startswith(start)
    advice = "echo '<address> box' >> /etc/hosts, or repair the DNS of this node."
    assert findings["host name"].advice == advice


def test_a_slow_reverse_lookup_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_resolver(monkeypatch, "10.0.0.3")
    monkeypatch.setattr(socket, "getnameinfo", lambda *_: time.sleep(30) or ("", ""))
    finding = by_name(doctor.check_interfaces(None, {}, deadline=1.2))["reverse name"]
    assert finding.ok is False
    assert finding.found.startswith("10.0.0.3: no answer within 1.2 s (1.")
    assert finding.advice == (
        "echo '10.0.0.3 box' >> /etc/hosts on every node: torch's store waits for it."
    )


def test_a_lookup_that_succeeds_late_fails() -> None:
    late = Lookup(("10.0.0.3",), "", 5.01)
    finding = doctor.check_lookup("host name", "box", late)
    assert finding == Finding(
        "host name",
        False,
        "box is 10.0.0.3 (5.01 s)",
        "echo '10.0.0.3 box' >> /etc/hosts, or repair the DNS of this node.",
    )


@pytest.mark.parametrize("ranks", ["4", "5"])  # on nodes of 2, or on nodes that differ
def test_a_loopback_address_fails_on_several_nodes(ranks: str) -> None:
    lookup, world = Lookup(("127.0.1.1",), "", 0.0), detect({**TWO_NODES, "WORLD_SIZE": ranks})
    finding = doctor.check_host_name("box", lookup, world, {})
    assert finding == Finding(
        "host name",
        False,
        "box is 127.0.1.1 (0.00 s)\nno other node can reach that address",
        "export GLOO_SOCKET_IFNAME=<interface>, or correct the line of box in /etc/hosts.",
    )
    assert doctor.check_host_name("box", lookup, world, {"GLOO_SOCKET_IFNAME": "eth0"}).ok
    assert doctor.check_host_name("box", lookup, detect({}), {}).ok
    assert doctor.check_host_name("box", lookup, None, {}).ok
    assert doctor.check_host_name("box", Lookup(("10.0.0.3",), "", 0.0), world, {}).ok


def test_the_master_host_is_looked_up_too(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_resolver(monkeypatch, "10.0.0.3")
    findings = by_name(doctor.check_interfaces(detect(TWO_NODES), {}))
    assert findings["master host"].found.startswith("localhost is 10.0.0.3 (")
    fake_resolver(monkeypatch, "10.0.0.3", host="localhost")
    assert "master host" not in by_name(doctor.check_interfaces(detect(TWO_NODES), {}))


def test_the_variables_name_interfaces_that_exist() -> None:
    names = [*INTERFACES]
    for backend, value in [
        ("gloo", "eth0,ib0"),
        ("nccl", "ib,eth"),
        ("nccl", "=eth0:1"),
        ("nccl", "^lo,docker"),
    ]:
        variable = f"{backend.upper()}_SOCKET_IFNAME"
        finding = doctor.check_variable(backend, {variable: value}, names)
        assert finding == Finding(f"{backend} interface", True, f"{variable}={value}")
    for backend, value in [("gloo", "eth7"), ("gloo", "eth"), ("nccl", "=eth"), ("nccl", "wlan")]:
        variable = f"{backend.upper()}_SOCKET_IFNAME"
        assert doctor.check_variable(backend, {variable: value}, names) == Finding(
            f"{backend} interface",
            False,
            f"{variable}={value}, but this machine has no {value.lstrip('=')}",
            f"export {variable}=<one of lo, eth0, ib0, eth1>",
        )


# ---------------------------------------------------------------- torch


def fake_torch(**more: object) -> Any:
    version = types.SimpleNamespace(cuda=more.pop("cuda", None), hip=more.pop("hip", None))
    return types.SimpleNamespace(**{"__version__": "2.13.0", "version": version, **more})


@pytest.mark.parametrize("version", ["2.11.0", "2.13.0+cpu", "2.12.0a0+git12", "3.0"])
def test_supported_versions(version: str) -> None:
    finding = doctor.check_version(fake_torch(__version__=version))
    assert finding == Finding("torch", True, f"{version}, built for neither CUDA nor HIP")


@pytest.mark.parametrize("version", ["2.5.1+cu124", "2.10.0", "1.13.1", "unknown"])
def test_unsupported_versions(version: str) -> None:
    finding = doctor.check_version(fake_torch(__version__=version, cuda="12.4"))
    text = f"{version}, built for CUDA 12.4"
    assert finding == Finding("torch", False, text, "pip install 'torch>=2.11'")


def test_an_old_torch_is_checked_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", fake_torch(__version__="2.5.0"))
    assert [f.name for f in doctor.check_torch({})] == ["torch"]


def test_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    (finding,) = doctor.check_torch({})
    assert not finding.ok
    assert finding.found.startswith(
        "cannot be imported: ModuleNotFoundError: import of torch halted"
    )
    assert finding.advice == "pip install 'torch>=2.11'"


class DeviceModule:
    """A device module of torch with some devices."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def device_count(self) -> int:
        return len(self.names)

    def get_device_name(self, index: int) -> str:
        if self.names[index] == "nameless":
            raise RuntimeError("no name")
        return self.names[index]


def fake_devices(monkeypatch: pytest.MonkeyPatch, kind: str | None, *names: str) -> None:
    monkeypatch.setattr(device, "accelerator", lambda: kind)
    monkeypatch.setattr(torch, "get_device_module", lambda _: DeviceModule(*names))


def test_devices_are_counted_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_devices(monkeypatch, "cuda", "NVIDIA H200", "NVIDIA H200", "nameless")
    kind, finding = doctor.check_devices(torch, {})
    assert kind == "cuda"
    assert finding == Finding("devices", True, "cuda: 2 x NVIDIA H200, 1 x cuda")


def fake_drivers(monkeypatch: pytest.MonkeyPatch, *paths: str) -> None:
    monkeypatch.setattr(Path, "exists", lambda self: str(self) in paths)


def test_no_device_and_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_devices(monkeypatch, None)
    fake_drivers(monkeypatch)
    assert doctor.check_devices(torch, {}) == ("cpu", Finding("devices", True, "cpu only"))


def test_a_driver_without_devices_that_torch_sees_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_available() -> bool:
        warnings.warn("CUDA initialization: the driver is too old", UserWarning, stacklevel=1)
        return False

    fake_devices(monkeypatch, None)
    fake_drivers(monkeypatch, "/dev/nvidiactl")
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    _, finding = doctor.check_devices(torch, {})
    assert finding == Finding(
        "devices",
        False,
        "cpu only, but a driver of NVIDIA is installed\nCUDA initialization: the driver is too old",
        "nvidia-smi, then install a torch built for that version: https://pytorch.org/get-started",
    )


def test_hidden_devices_do_not_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_devices(monkeypatch, None)
    fake_drivers(monkeypatch, "/dev/nvidiactl")
    _, finding = doctor.check_devices(torch, {"CUDA_VISIBLE_DEVICES": ""})
    assert finding == Finding("devices", True, "cpu only (CUDA_VISIBLE_DEVICES='')")


def test_an_amd_graphics_driver_counts_only_for_a_torch_with_hip(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake_devices(monkeypatch, None)
    fake_drivers(monkeypatch, "/dev/kfd")
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
    assert kind == "cpu"
    assert finding == Finding(
        "devices",
        False,
        "cannot import torch_npu, which makes torch know npu.\nImportError: no libhcl.so",
        "repair that package, or init(device='cpu').",
    )


def with_backends(*names: str, available: bool = True) -> Any:
    distributed = types.SimpleNamespace(
        is_available=lambda: available, is_backend_available=names.__contains__
    )
    return fake_torch(distributed=distributed)


def test_backends_that_are_built_in_and_those_that_are_not() -> None:
    finding = doctor.check_backends(with_backends("gloo", "mpi"), "cpu")
    assert finding == Finding("backends", True, "gloo mpi; not built in: nccl ucc xccl")
    everything = with_backends(*doctor.BACKENDS)
    assert doctor.check_backends(everything, "cuda").found == "gloo nccl mpi ucc xccl"


def test_a_backend_from_the_table_of_device() -> None:
    finding = doctor.check_backends(with_backends("gloo", "hccl"), "npu")
    assert finding == Finding("backends", True, "gloo hccl; not built in: nccl mpi ucc xccl")


def test_no_backend_for_the_device_fails() -> None:
    finding = doctor.check_backends(with_backends("gloo"), "cuda")
    text = "gloo; not built in: nccl mpi ucc xccl\nnone of them supports cuda"
    assert finding == Finding("backends", False, text, "install a torch built with nccl.")


def test_no_torch_distributed() -> None:
    finding = doctor.check_backends(with_backends(available=False), "cpu")
    text = "torch was built without torch.distributed"
    assert finding == Finding("backends", False, text, "install a torch built with gloo or mpi.")
