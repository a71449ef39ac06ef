"""The checkup: what each check finds where all is well, and where it is not. No rank is started."""

from __future__ import annotations

import socket
import sys
import time
import types
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from meshkit import LaunchError, detect
from meshkit.launch.device import accelerators, device
from meshkit.launch.doctor import checkup, interfaces, network
from meshkit.launch.doctor.finding import Finding
from meshkit.launch.doctor.network import Lookup

TWO_NODES = {
    "RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
}
WIRES = {"lo": ("127.0.0.1", "::1"), "eth0": ("10.0.0.3",), "ib0": ("10.1.0.3",), "eth1": ()}


def named(findings: list[Finding]) -> dict[str, Finding]:
    names = [finding.name for finding in findings]
    assert len(names) == len(set(names))
    return dict(zip(names, findings, strict=True))


def resolver(monkeypatch: pytest.MonkeyPatch, *addresses: str, host: str = "box") -> None:
    """Every name has these addresses; none, and it has no address."""

    def forward(name: str, *_: object, **__: object) -> list[Any]:
        if not addresses:
            raise socket.gaierror(-2, "Name or service not known")
        return [(2, 1, 6, "", (address, 0)) for address in addresses]

    monkeypatch.setattr(socket, "gethostname", lambda: host)
    monkeypatch.setattr(socket, "getaddrinfo", forward)
    monkeypatch.setattr(socket, "getnameinfo", lambda place, _: (f"name-of-{place[0]}", "0"))


# ---------------------------------------------------------------- all of it


def test_a_checkup_of_this_process_in_order() -> None:
    findings = named(checkup.checkup({}))
    assert list(findings)[:4] == ["python", "torch", "devices", "backends"]
    assert list(findings)[4:12] == ["launcher", *checkup._FIELDS, "host name"]
    last = [name for name in findings if name != "nccl interface"][-2:]
    assert last == ["gloo interface", "shared memory"]
    assert ("nccl interface" in findings) is torch.distributed.is_nccl_available()
    assert findings["python"].found == ".".join(map(str, sys.version_info[:3]))
    assert findings["torch"].found.startswith(f"{torch.__version__}, built for ")
    assert "gloo" in findings["backends"].found
    assert findings["launcher"] == Finding("launcher", True, "single")


def test_every_look_here_has_an_advice_and_nothing_else_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolver(monkeypatch)
    env = {"RANK": "9", "WORLD_SIZE": "8", "NCCL_SOCKET_IFNAME": "=no0"}
    findings = checkup.checkup(env)
    assert {f.name for f in findings if not f.ok} >= {
        *("launcher", "host name", "gloo interface", "nccl interface")
    }
    for finding in findings:
        assert finding.ok == (not finding.advice)


# ---------------------------------------------------------------- python and torch


@pytest.mark.parametrize(("version", "ok"), [((3, 10, 0), True), ((3, 9, 19), False)])
def test_the_oldest_python(version: tuple[int, ...], ok: bool) -> None:
    found = checkup.python_version(version)
    assert found.ok is ok
    assert found.advice == ("" if ok else "use Python 3.10 or newer.")


def fake_torch(**more: object) -> Any:
    version = types.SimpleNamespace(cuda=more.pop("cuda", None), hip=more.pop("hip", None))
    return types.SimpleNamespace(**{"__version__": "2.9.1", "version": version, **more})


@pytest.mark.parametrize("version", ["2.6.0", "2.13.0+cpu", "2.10.0a0+git12", "3.0"])
def test_a_torch_that_is_supported(version: str) -> None:
    found = checkup.torch_version(fake_torch(__version__=version))
    assert found == Finding("torch", True, f"{version}, built for neither CUDA nor HIP")


@pytest.mark.parametrize("version", ["2.5.1+cu124", "1.13.1", "unknown"])
def test_a_torch_that_is_not(version: str) -> None:
    found = checkup.torch_version(fake_torch(__version__=version, cuda="12.4"))
    text = f"{version}, built for CUDA 12.4"
    assert found == Finding("torch", False, text, "pip install 'torch>=2.6'")


def test_of_a_torch_too_old_nothing_more_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", fake_torch(__version__="2.5.0"))
    assert [f.name for f in checkup.torch_and_devices({})] == ["torch"]


def test_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    (found,) = checkup.torch_and_devices({})
    assert not found.ok
    assert found.found.startswith("cannot be imported: ModuleNotFoundError: import of torch halted")
    assert found.advice == "pip install 'torch>=2.6'"
    assert checkup._has_nccl() is False


# ---------------------------------------------------------------- devices and backends


class Module:
    """A device module of torch with some devices."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def device_count(self) -> int:
        return len(self.names)

    def get_device_name(self, index: int) -> str:
        if self.names[index] == "nameless":
            raise RuntimeError("no name")
        return self.names[index]


def on(monkeypatch: pytest.MonkeyPatch, kind: str | None, *names: str) -> None:
    monkeypatch.setattr(device, "accelerator", lambda: kind)
    monkeypatch.setattr(torch, "get_device_module", lambda _: Module(*names))


def test_devices_are_counted_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, "cuda", "NVIDIA H200", "NVIDIA H200", "nameless")
    kind, found = checkup.devices(torch, {})
    assert kind == "cuda"
    assert found == Finding("devices", True, "cuda: 2 x NVIDIA H200, 1 x cuda")


def drivers(monkeypatch: pytest.MonkeyPatch, *paths: str) -> None:
    monkeypatch.setattr(Path, "exists", lambda self: str(self) in paths)


def test_no_device_and_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, None)
    drivers(monkeypatch)
    assert checkup.devices(torch, {}) == ("cpu", Finding("devices", True, "cpu only"))


def test_a_driver_whose_devices_torch_does_not_see(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_available() -> bool:
        warnings.warn("CUDA initialization: the driver is too old", UserWarning, stacklevel=1)
        return False

    on(monkeypatch, None)
    drivers(monkeypatch, "/dev/nvidiactl")
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    _, found = checkup.devices(torch, {})
    assert found == Finding(
        "devices",
        False,
        "cpu only, but a driver of NVIDIA is installed\nCUDA initialization: the driver is too old",
        "nvidia-smi, then install a torch built for that version: https://pytorch.org/get-started",
    )


def test_devices_hidden_on_purpose(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, None)
    drivers(monkeypatch, "/dev/nvidiactl")
    _, found = checkup.devices(torch, {"CUDA_VISIBLE_DEVICES": ""})
    assert found == Finding("devices", True, "cpu only (CUDA_VISIBLE_DEVICES='')")


def test_an_amd_screen_is_no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, None)
    drivers(monkeypatch, "/dev/kfd")
    monkeypatch.setattr(torch.version, "hip", None)
    assert checkup.devices(torch, {})[1].ok
    monkeypatch.setattr(torch.version, "hip", "6.2")
    assert checkup.devices(torch, {})[1].advice.startswith("rocm-smi, then")


def test_a_bridge_that_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: str) -> None:
        raise ImportError("no libhcl.so")

    on(monkeypatch, "npu")
    monkeypatch.setattr(accelerators, "import_module", broken)
    kind, found = checkup.devices(torch, {})
    assert kind == "cpu"
    assert found == Finding(
        "devices",
        False,
        "init(): cannot import torch_npu, which makes torch know npu.\nImportError: no libhcl.so",
        "repair that package, or init(device='cpu').",
    )


def with_backends(*names: str, available: bool = True) -> Any:
    distributed = types.SimpleNamespace(
        is_available=lambda: available, is_backend_available=names.__contains__
    )
    return fake_torch(distributed=distributed)


def test_backends_built_in_and_not() -> None:
    found = checkup.backends(with_backends("gloo", "mpi"), "cpu")
    assert found == Finding("backends", True, "gloo mpi; not built in: nccl ucc xccl")
    everything = with_backends(*checkup.BACKENDS)
    assert checkup.backends(everything, "cuda").found == "gloo nccl mpi ucc xccl"


def test_a_backend_of_the_table_of_accelerators() -> None:
    found = checkup.backends(with_backends("gloo", "hccl"), "npu")
    assert found == Finding("backends", True, "gloo hccl; not built in: nccl mpi ucc xccl")


def test_no_backend_for_the_device() -> None:
    found = checkup.backends(with_backends("gloo"), "cuda")
    text = "gloo; not built in: nccl mpi ucc xccl\nnone of them supports cuda"
    assert found == Finding("backends", False, text, "install a torch built with nccl.")


def test_no_torch_distributed() -> None:
    found = checkup.backends(with_backends(available=False), "cpu")
    text = "torch was built without torch.distributed"
    assert found == Finding("backends", False, text, "install a torch built with gloo or mpi.")


# ---------------------------------------------------------------- the launcher


def test_each_field_has_its_source() -> None:
    world, findings = checkup.launcher({**TWO_NODES, "TORCHELASTIC_RUN_ID": "x"})
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


def test_a_field_that_the_launcher_does_not_tell() -> None:
    env = {"TORCHELASTIC_RUN_ID": "x", "RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}
    found = named(checkup.launcher(env)[1])
    assert found["num_nodes"] == Finding("num_nodes", True, "unknown")
    assert "master_addr" not in found


def test_a_launcher_that_contradicts_itself_has_the_words_of_detect() -> None:
    env = {"RANK": "9", "WORLD_SIZE": "8"}
    world, findings = checkup.launcher(env)
    with pytest.raises(LaunchError) as refused:
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
    lines = [*findings[0].found.split("\n"), f"Fix: {findings[0].advice}"]
    assert lines == [line.strip() for line in str(refused.value).split("\n")]


def test_a_process_by_itself_in_an_allocation() -> None:
    _, findings = checkup.launcher({"SLURM_NTASKS": "4"})
    assert findings[0] == Finding(
        "launcher",
        False,
        "single: a single process in an allocation of several tasks (SLURM_NTASKS = 4)",
        "srun python -m meshkit doctor; ignore this if one process is intended.",
    )


def test_ranks_that_know_no_place_to_meet() -> None:
    _, findings = checkup.launcher({"RANK": "0", "WORLD_SIZE": "8", "MASTER_ADDR": "a"})
    assert findings[-1] == Finding(
        "rendezvous",
        False,
        "the address of rank 0 is unknown: MASTER_ADDR=a, MASTER_PORT=None",
        "export MASTER_ADDR=<host of rank 0> MASTER_PORT=29500",
    )


@pytest.mark.parametrize("there", [True, False])
def test_ranks_that_meet_by_mpi(monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", types.ModuleType("mpi4py") if there else None)
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    values = zip(names, "1212", strict=True)
    _, findings = checkup.launcher({f"OMPI_COMM_WORLD_{name}": v for name, v in values})
    text = "the address of rank 0 is unknown: MASTER_ADDR=None, MASTER_PORT=None, "
    text += "and mpi4py is not installed"
    advice = "pip install mpi4py, or export MASTER_ADDR=<host of rank 0> MASTER_PORT=29500"
    missing = Finding("rendezvous", False, text, advice)
    assert findings[-1] == (
        Finding("rendezvous", True, "rank 0 sends its address through mpi4py") if there else missing
    )


def test_a_file_is_a_place_to_meet() -> None:
    env = {"MESHKIT_SPAWN": "file:///x", **dict.fromkeys(("RANK", "LOCAL_RANK"), "0")}
    env |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), "2")
    _, findings = checkup.launcher(env)
    assert findings[-1] == Finding("init_method", True, "file:///x (MESHKIT_SPAWN)")


# ---------------------------------------------------------------- lookups


def test_a_lookup_that_never_ends_is_left_behind() -> None:
    began = time.monotonic()
    answer = network.lookup(lambda: time.sleep(30) or [], deadline=0.05)
    assert time.monotonic() - began < 5
    assert answer.error == "no answer within 0.05 s"
    assert answer.values == ()
    assert answer.seconds >= 0.05


@pytest.mark.parametrize("error", [socket.gaierror(-2, "unknown"), UnicodeError("too long")])
def test_a_lookup_that_fails(error: Exception) -> None:
    def ask() -> list[str]:
        raise error

    answer = network.lookup(ask)
    assert (answer.values, answer.error) == ((), str(error))


def test_a_name_that_is_too_long_is_no_crash() -> None:
    assert network.addresses_of("x" * 300).values == ()


def test_addresses_and_names_of_this_machine() -> None:
    assert "127.0.0.1" in network.addresses_of("127.0.0.1").values
    assert len(network.name_of("127.0.0.1").values) == 1


def test_a_host_name_with_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    resolver(monkeypatch, "10.0.0.3", "10.0.0.3", "10.0.0.4")
    answer = network.addresses_of("box")
    assert answer.values == ("10.0.0.3", "10.0.0.4")
    found = interfaces.resolved("host name", "box", Lookup(answer.values, "", 0.001))
    assert found == Finding("host name", True, "box is 10.0.0.3, 10.0.0.4 (0.00 s)")


def test_a_host_name_without(monkeypatch: pytest.MonkeyPatch) -> None:
    resolver(monkeypatch)
    found = named(interfaces.check_interfaces(None, {}, nccl=False))
    assert "reverse name" not in found
    assert not found["host name"].ok
    start = "box has no address: [Errno -2] Name or service not known ("
    assert found["host name"].found.startswith(start)
    advice = "echo '<address> box' >> /etc/hosts, or repair the DNS of this node."
    assert found["host name"].advice == advice


def test_a_slow_resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    resolver(monkeypatch, "10.0.0.3")
    monkeypatch.setattr(socket, "getnameinfo", lambda *_: time.sleep(30) or ("", ""))
    began = time.monotonic()
    found = named(interfaces.check_interfaces(None, {}, nccl=False, deadline=1.2))["reverse name"]
    assert 1.2 <= time.monotonic() - began < 10
    assert found.ok is False
    assert found.found.startswith("10.0.0.3: no answer within 1.2 s (1.")
    assert found.advice == (
        "echo '10.0.0.3 box' >> /etc/hosts on every node: torch's store waits for it."
    )


def test_an_answer_that_came_late(monkeypatch: pytest.MonkeyPatch) -> None:
    late = Lookup(("10.0.0.3",), "", 5.01)
    found = interfaces.resolved("host name", "box", late)
    assert found == Finding(
        "host name",
        False,
        "box is 10.0.0.3 (5.01 s)",
        "echo '10.0.0.3 box' >> /etc/hosts, or repair the DNS of this node.",
    )
    monkeypatch.setattr(interfaces, "name_of", lambda *_: Lookup(("box",), "", 5.01))
    assert interfaces.reverse_name("box", "10.0.0.3").found == "10.0.0.3 is box (5.01 s)"
    assert not interfaces.reverse_name("box", "10.0.0.3").ok


def test_an_address_without_a_name_is_no_fault_where_that_is_said_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "getnameinfo", lambda place, _: (place[0], "0"))
    found = interfaces.reverse_name("box", "10.0.0.3")
    assert found.ok
    assert found.found.startswith("10.0.0.3 has no name (0.")


def test_the_loopback_as_host_name_of_several_nodes() -> None:
    answer, world = Lookup(("127.0.1.1",), "", 0.0), detect(TWO_NODES)
    found = interfaces.host_name("box", answer, world, {})
    assert found == Finding(
        "host name",
        False,
        "box is 127.0.1.1 (0.00 s)\nno other node can reach that address",
        "export GLOO_SOCKET_IFNAME=<interface>, or correct the line of box in /etc/hosts.",
    )
    assert interfaces.host_name("box", answer, world, {"GLOO_SOCKET_IFNAME": "eth0"}).ok
    assert interfaces.host_name("box", answer, detect({}), {}).ok
    assert interfaces.host_name("box", answer, None, {}).ok
    assert interfaces.host_name("box", Lookup(("10.0.0.3",), "", 0.0), world, {}).ok


def test_the_host_where_ranks_meet_is_looked_up_too(monkeypatch: pytest.MonkeyPatch) -> None:
    resolver(monkeypatch, "10.0.0.3")
    found = named(interfaces.check_interfaces(detect(TWO_NODES), {}, nccl=False))
    assert found["master host"].found.startswith("localhost is 10.0.0.3 (")
    resolver(monkeypatch, "10.0.0.3", host="localhost")
    assert "master host" not in named(
        interfaces.check_interfaces(detect(TWO_NODES), {}, nccl=False)
    )


# ---------------------------------------------------------------- interfaces


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells addresses")
def test_the_interfaces_of_this_machine() -> None:
    found = network.interfaces()
    assert list(found) == [name for _, name in socket.if_nameindex()]
    assert "127.0.0.1" in found["lo"]
    assert network.interface_of("127.0.1.1", found) == "lo"
    assert network.is_local("127.0.0.1")
    assert not network.is_local("192.0.2.1")  # RFC 5737: no machine has it


def test_the_table_of_ipv6(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    table = tmp_path / "if_inet6"
    monkeypatch.setattr(network, "IPV6_TABLE", table)
    assert network._ipv6_addresses() == {}
    table.write_text(
        "00000000000000000000000000000001 01 80 10 80       lo\n"
        "fe800000000000000000000000000003 02 40 20 80     eth0\n"
        "20010db8000000000000000000000003 02 40 00 80     eth0\n"
    )
    assert network._ipv6_addresses() == {"lo": ("::1",), "eth0": ("fe80::3", "2001:db8::3")}


def test_an_interface_that_is_not_there_has_no_address() -> None:
    assert network._ipv4_address("no-such-interface-at-all") == ()


@pytest.mark.parametrize(
    ("pattern", "picked"),
    [
        ("eth", ["eth0", "eth1"]),
        ("eth1,ib", ["ib0", "eth1"]),
        ("eth0:4000,ib0", ["eth0", "ib0"]),
        ("=eth", []),
        ("=eth1,lo", ["lo", "eth1"]),
        ("^lo", ["eth0", "ib0", "eth1"]),
        ("^=eth0,lo", ["ib0", "eth1"]),
        ("^eth,ib,lo", []),
    ],
)
def test_what_nccl_picks(pattern: str, picked: list[str]) -> None:
    assert network.match_interfaces(pattern, WIRES) == picked


def test_what_nccl_takes_by_itself() -> None:
    assert network.nccl_choice(WIRES) == ["ib0"]
    assert network.nccl_choice({**WIRES, "ib0": (), "docker0": ("172.17.0.1",)}) == ["eth0"]
    assert network.nccl_choice({"lo": ("127.0.0.1",), "docker0": ("172.17.0.1",)}) == ["docker0"]
    assert network.nccl_choice({"lo": ("127.0.0.1",)}) == ["lo"]
    assert network.nccl_choice({"eth0": ()}) == []


def test_the_interface_of_the_host_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interfaces, "is_local", lambda address: address != "192.0.2.1")
    found = interfaces.gloo_interface({}, WIRES, ["192.0.2.1", "10.0.0.3"])
    text = "eth0 (10.0.0.3, an address of the host name)"
    assert found == Finding("gloo interface", True, text)
    found = interfaces.gloo_interface({}, WIRES, ["10.0.0.9"])  # a second address of some interface
    text = "unknown interface of this machine (10.0.0.9, an address of the host name)"
    assert found == Finding("gloo interface", True, text)


def test_a_host_name_with_the_address_of_another_machine() -> None:
    for addresses in ([], ["192.0.2.1"]):
        assert interfaces.gloo_interface({}, WIRES, addresses) == Finding(
            "gloo interface",
            False,
            "the loopback, because the host name has no address of this machine",
            "export GLOO_SOCKET_IFNAME=<one of lo, eth0, ib0, eth1>",
        )


def test_an_interface_named_for_gloo() -> None:
    found = interfaces.gloo_interface({"GLOO_SOCKET_IFNAME": "eth0,ib0"}, WIRES, [])
    assert found == Finding("gloo interface", True, "GLOO_SOCKET_IFNAME=eth0,ib0")
    assert interfaces.gloo_interface({"GLOO_SOCKET_IFNAME": "eth0,eth7"}, WIRES, []) == Finding(
        "gloo interface",
        False,
        "GLOO_SOCKET_IFNAME=eth0,eth7, but this machine has no eth7",
        "export GLOO_SOCKET_IFNAME=<one of lo, eth0, ib0, eth1>",
    )


def test_an_interface_named_for_nccl() -> None:
    found = interfaces.nccl_interface({"NCCL_SOCKET_IFNAME": "^lo,ib"}, WIRES)
    text = "NCCL_SOCKET_IFNAME=^lo,ib selects eth0, eth1"
    assert found == Finding("nccl interface", True, text)
    assert interfaces.nccl_interface({"NCCL_SOCKET_IFNAME": "=eth7"}, WIRES) == Finding(
        "nccl interface",
        False,
        "NCCL_SOCKET_IFNAME==eth7, but this machine has no =eth7",
        "export NCCL_SOCKET_IFNAME=<one of lo, eth0, ib0, eth1>",
    )


def test_nccl_is_looked_at_where_it_is_built_in_or_spoken_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolver(monkeypatch, "127.0.0.1")
    monkeypatch.setattr(interfaces, "interfaces", lambda: WIRES)
    assert "nccl interface" not in named(interfaces.check_interfaces(None, {}, nccl=False))
    own = named(interfaces.check_interfaces(None, {}, nccl=True))["nccl interface"]
    assert own == Finding("nccl interface", True, "ib0 (NCCL's own choice)")
    said = {"NCCL_SOCKET_IFNAME": "eth0"}
    assert named(interfaces.check_interfaces(None, said, nccl=False))["nccl interface"].ok


# ---------------------------------------------------------------- memory


@pytest.mark.parametrize(("blocks", "ok", "size"), [(2**18, True, "1.00"), (2**14, False, "0.06")])
def test_the_size_of_shared_memory(
    monkeypatch: pytest.MonkeyPatch, blocks: int, ok: bool, size: str
) -> None:
    told = types.SimpleNamespace(f_blocks=blocks, f_frsize=4096)
    monkeypatch.setattr(checkup.os, "statvfs", lambda _: told)
    found = checkup.shared_memory()
    advice = "" if ok else "docker run --ipc=host, or --shm-size=8g."
    assert found == Finding("shared memory", ok, f"{size} GiB in /dev/shm", advice)


def test_no_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup.sys, "platform", "linux")
    found = checkup.shared_memory("/no/such")
    assert found == Finding("shared memory", False, "no /no/such", "mount -t tmpfs tmpfs /no/such")
    monkeypatch.setattr(checkup.sys, "platform", "darwin")
    assert checkup.shared_memory("/no/such") == Finding("shared memory", True, "no /no/such")
