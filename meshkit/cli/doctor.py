"""``meshkit doctor``: check the requirements of a job on this machine, each OK or FAILED.

Each check returns a :class:`Finding`, or several. A check never raises, never joins a job and
never waits longer than its deadline.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import sys
import time
import warnings
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import ModuleType

from ..errors import LaunchError, MeshkitError
from ..launch.command import describe_exports
from ..launch.detect import FIELDS, detect, environment
from ..launch.endpoint import Env
from ..launch.launchers import LAUNCHERS
from ..launch.name_lookup import address_at_store, look_up_name
from ..launch.signs import starter
from ..launch.times import DeadlineExceededError, run_with_deadline
from ..launch.world import LOOPBACK_HOST, World
from ..text import MIN_CELL, count_noun, format_bytes, wrap_lines
from .main import Command, Result
from .options import read_seconds

DEADLINE = 6.0  # seconds for one lookup; resolvers usually try a server for 5
CONNECT = 60.0  # seconds for the communicator of one rank
SLOW = 1.0  # seconds; a longer lookup delays every connection noticeably
OLDEST_PYTHON = (3, 10)
OLDEST_TORCH = (2, 11)
INSTALL = "pip install 'torch>={}.{}'".format(*OLDEST_TORCH)
BACKENDS = ("gloo", "nccl", "mpi", "ucc", "xccl")
HIDING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
ENDPOINT_FIELDS = ("master_addr", "master_port", "init_method")
GIB = 2**30
MIN_SHARED_MEMORY = 1 * GIB  # used by the workers of data loaders and by NCCL's transport


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    name: str  # unique in a checkup
    ok: bool  # whether a job can run with it
    found: str  # observed state, in one line or more
    advice: str = ""  # a command or step that repairs it; empty if ``ok``


def make_finding(name: str, ok: bool, found: str, advice: str) -> Finding:
    """Return a finding with the advice if the check failed."""
    return Finding(name, ok, found, "" if ok else advice)


def failed(name: str, error: MeshkitError) -> Finding:
    """Return an error as a failed check, with its fix as the advice."""
    return Finding(name, False, "\n".join((error.summary, *error.evidence)), error.fix_text)


def run(args: Namespace) -> Result:
    """Check the environment. Local; imports torch, joins nothing."""
    return as_result(checkup(environment(), deadline=args.timeout))


def as_result(findings: Sequence[Finding]) -> Result:
    """Return findings as the result of a command."""
    ok = all(finding.ok for finding in findings)
    report = {"ok": ok, "findings": [asdict(finding) for finding in findings]}
    return Result(lambda: report, partial(as_text, findings), ok)


def checkup(env: Env, *, deadline: float = DEADLINE) -> list[Finding]:
    """Check Python, torch, launcher, names, interfaces and shared memory. Local; joins no job."""
    world, launcher_findings = check_launcher(env)
    return [
        check_python(),
        *check_torch(env),
        *launcher_findings,
        *check_interfaces(world, env, deadline),
        check_shared_memory(),
    ]


def check_python(version: tuple[int, ...] = sys.version_info[:3]) -> Finding:
    """Check the version of this Python."""
    advice = "use Python {}.{} or newer.".format(*OLDEST_PYTHON)
    return make_finding("python", version[:2] >= OLDEST_PYTHON, ".".join(map(str, version)), advice)


def check_torch(env: Env) -> list[Finding]:
    """Check torch and, if it can be used, its devices and backends."""
    try:
        import torch
    except Exception as error:  # a broken installation may raise anything
        text = f"cannot be imported: {type(error).__name__}: {error}"
        return [Finding("torch", False, text, INSTALL)]
    version = check_version(torch)
    if not version.ok:
        return [version]
    device_type, devices = check_devices(torch, env)
    backends = check_backends(torch, device_type)
    return [version, devices, backends, *(check_binding(torch, device_type) if backends.ok else [])]


def check_version(torch: ModuleType) -> Finding:
    """Check the version of torch and report the platform it was built for."""
    versions = {name: getattr(torch.version, name.lower(), None) for name in ("CUDA", "HIP")}
    builds = [f"{name} {version}" for name, version in versions.items() if version]
    text = f"{torch.__version__}, built for {' and '.join(builds) or 'neither CUDA nor HIP'}"
    numbers = re.match(r"(\d+)\.(\d+)", str(torch.__version__))
    ok = numbers is not None and (int(numbers[1]), int(numbers[2])) >= OLDEST_TORCH
    return make_finding("torch", ok, text, INSTALL)


def check_devices(torch: ModuleType, env: Env) -> tuple[str, Finding]:
    """Return the device type of this process and the finding that counts devices by name."""
    from ..launch.device import accelerator, installed, load_bridge, visible_devices

    with warnings.catch_warnings(record=True) as caught:  # torch warns about driver problems
        warnings.simplefilter("always")
        device_type = accelerator() or installed()
        try:
            load_bridge(device_type or "cpu", None)
        except LaunchError as error:
            return "cpu", failed("devices", error)
        num_devices = visible_devices(torch.device(device_type)) if device_type else 0
        if not num_devices and (torch.version.cuda or torch.version.hip):
            torch.cuda.is_available()
    if device_type is None or not num_devices:
        return "cpu", _no_devices(torch, env, [str(warning.message) for warning in caught])
    names = [device_type] * num_devices
    for index in range(num_devices):
        with suppress(RuntimeError, AttributeError, TypeError):  # torch has no name for it
            names[index] = str(torch.get_device_module(device_type).get_device_name(index))
    counts = ", ".join(f"{count} x {name}" for name, count in Counter(names).items())
    return device_type, Finding("devices", True, f"{device_type}: {counts}")


def _no_devices(torch: ModuleType, env: Env, messages: Sequence[str]) -> Finding:
    """Return a finding for the cpu alone; it fails if a driver exists and no device is hidden."""
    nvidia = Path("/dev/nvidiactl").exists()
    amd = Path("/dev/kfd").exists() and torch.version.hip  # laptops have it for graphics
    hidden = [f"({name}={env[name]!r})" for name in HIDING if env.get(name) in ("", "-1")]
    if not (nvidia or amd) or hidden:
        return Finding("devices", True, " ".join(["cpu only", *hidden]))
    vendor, tool = ("NVIDIA", "nvidia-smi") if nvidia else ("AMD", "rocm-smi")
    text = "\n".join([f"cpu only, but a driver of {vendor} is installed", *messages])
    advice = f"{tool}, then install a torch built for that version: https://pytorch.org/get-started"
    return Finding("devices", False, text, advice)


def check_backends(torch: ModuleType, device_type: str) -> Finding:
    """Check that this torch has a backend for the device, and list all backends."""
    from ..launch.device import accelerator_row

    needed = accelerator_row(device_type).backends
    advice = f"install a torch built with {' or '.join(needed)}."
    if not torch.distributed.is_available():
        return Finding("backends", False, "torch was built without torch.distributed", advice)
    names = dict.fromkeys([*BACKENDS, *sorted(needed)])
    built = [name for name in names if torch.distributed.is_backend_available(name)]
    missing = [name for name in names if name not in built]
    text = " ".join(built) or "none"
    text += f"; not built in: {' '.join(missing)}" if missing else ""
    if {*built} & {*needed}:
        return Finding("backends", True, text)
    return Finding("backends", False, f"{text}\nnone of them supports {device_type}", advice)


def check_binding(torch: ModuleType, device_type: str) -> list[Finding]:
    """Measure what the binding of ``init`` costs, if a default group can be bound to this device.

    If the communicator of one rank cannot be made, that of a job cannot either.
    """
    from ..launch.default_group import measure_binding
    from ..launch.device import accelerator, nccl_parts, select_backend

    device = torch.device(device_type, 0)
    backend = select_backend(None, device) if device_type == accelerator() else ""
    if not nccl_parts(backend):
        return []
    try:
        seconds, size = run_with_deadline(CONNECT, lambda: measure_binding(device, backend))
    except Exception as error:  # DeadlineExceededError, or any error of a broken driver
        text = f"{backend} on {device}: {str(error).partition(chr(10))[0]}"
        advice = "NCCL_DEBUG=INFO meshkit doctor, whose lines name the cause; or init(bind=False)."
        return [Finding("binding", False, text, advice)]
    text = f"a communicator of one rank on {device}: {seconds:.2f} s, {format_bytes(size)}"
    text += "\ninit(bind=False) makes none before the first collective"
    return [Finding("binding", True, text)]


def check_launcher(env: Env) -> tuple[World | None, list[Finding]]:
    """Return the world of this process and one finding per field, or the launcher's error."""
    try:
        world = detect(env)
    except LaunchError as error:
        return None, [failed("launcher", error)]
    sign, command = world.allocation, starter(world.allocation)
    text = world.launcher
    if sign:
        text += f": {world.started}, and the environment says that the job is larger ({sign})"
    start = f"{command} python -m meshkit doctor" if command else "start the ranks with a launcher"
    intended = "one process is" if world.world_size == 1 else f"{world.world_size} ranks are"
    advice = f"{start}; ignore this if {intended} intended."
    findings = [make_finding("launcher", not sign, text, advice)]
    exports, fix = describe_exports(world, env)
    findings += [Finding("exports", False, exports, f"{fix}.")] if exports else []
    for name in (*FIELDS, *(f for f in ENDPOINT_FIELDS if getattr(world, f) is not None)):
        value = getattr(world, name)
        text = "unknown until init" if value is None else f"{value} ({world.sources[name]})"
        findings.append(Finding(name, True, text))
    has_address = world.init_method or (world.master_addr and world.master_port)
    needs_address = world.world_size > 1 and not has_address
    return world, [*findings, *[check_rendezvous(world)] * needs_address]


def check_rendezvous(world: World) -> Finding:
    """Check how ranks find rank 0 if the launcher of several ranks sets no address."""
    by_mpi = any(row.by_mpi for row in LAUNCHERS if row.name == world.launcher)
    if by_mpi and world.local_world_size == world.world_size:
        return Finding("rendezvous", True, "one node: a file that is named after the launcher")
    with suppress(ImportError):
        if by_mpi:
            import mpi4py  # noqa: F401  (does not start MPI, unlike mpi4py.MPI)

            return Finding("rendezvous", True, "rank 0 sends its address through mpi4py")
    text = f"the address of rank 0 is unknown: MASTER_ADDR={world.master_addr}, "
    text += f"MASTER_PORT={world.master_port}" + ", and mpi4py is not installed" * by_mpi
    advice = "export MASTER_ADDR=<host of rank 0> MASTER_PORT=29500"
    return Finding("rendezvous", False, text, "pip install mpi4py, or " * by_mpi + advice)


@dataclass(frozen=True)
class Lookup:
    """The result of a lookup."""

    values: tuple[str, ...]  # addresses or names, in the resolver's order; empty if it failed
    error: str  # reason of the failure; empty if it succeeded
    seconds: float


def check_interfaces(world: World | None, env: Env, deadline: float = DEADLINE) -> list[Finding]:
    """Check the names of this host and of the master, and the variables of gloo and NCCL."""
    host = socket.gethostname()
    addresses = look_up_addresses(host, deadline)
    findings = [check_host_name(host, addresses, world, env)]
    if addresses.values:
        findings.append(check_reverse_name("reverse name", host, addresses.values[0], deadline))
    findings.append(check_reverse_name("loopback name", "localhost", LOOPBACK_HOST, deadline))
    master = world.master_addr if world is not None else None
    if master and master != host:
        findings.append(check_lookup("master host", master, look_up_addresses(master, deadline)))
    names = [name for _, name in socket.if_nameindex()]
    return [*findings, *(check_variable(name, env, names) for name in ("gloo", "nccl"))]


def look_up(query: Callable[[], Sequence[str]], deadline: float = DEADLINE) -> Lookup:
    """Run a query that may block and return its result, or an error after the deadline."""
    start, error = time.monotonic(), ""
    values: Sequence[str] = ()
    try:
        values = run_with_deadline(deadline, query)
    except DeadlineExceededError:
        error = f"no answer within {deadline:g} s"
    except (OSError, UnicodeError) as failure:
        error = str(failure)
    return Lookup(tuple(values), error, time.monotonic() - start)


def look_up_addresses(host: str, deadline: float = DEADLINE) -> Lookup:
    """Look up the addresses of a host name, each once."""

    def query() -> list[str]:
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(address[0]) for *_, address in entries))

    return look_up(query, deadline)


def check_host_name(host: str, lookup: Lookup, world: World | None, env: Env) -> Finding:
    """Check that this machine's name has an address that other nodes can reach."""
    finding = check_lookup("host name", host, lookup)
    address = lookup.values[0].partition("%")[0] if lookup.values else "0.0.0.0"
    one_node = world is None or world.local_world_size in (None, world.world_size)
    is_reachable = not ipaddress.ip_address(address).is_loopback or env.get("GLOO_SOCKET_IFNAME")
    if one_node or is_reachable:
        return finding
    text = f"{finding.found}\nno other node can reach that address"
    advice = f"export GLOO_SOCKET_IFNAME=<interface>, or correct the line of {host} in /etc/hosts."
    return Finding("host name", False, text, advice)


def check_lookup(name: str, host: str, lookup: Lookup) -> Finding:
    """Check that a host name has addresses and that its lookup was fast."""
    state = f"is {', '.join(lookup.values)}" if lookup.values else f"has no address: {lookup.error}"
    ok = bool(lookup.values) and lookup.seconds <= SLOW
    address = lookup.values[0] if lookup.values else "<address>"
    advice = f"echo '{address} {host}' >> /etc/hosts, or repair the DNS of this node."
    return make_finding(name, ok, f"{host} {state} ({lookup.seconds:.2f} s)", advice)


def check_reverse_name(name: str, host: str, address: str, deadline: float = DEADLINE) -> Finding:
    """Check that the reverse lookup of an address is fast, whether or not it finds a name.

    The address is looked up as the host of torch's store does, for each rank that connects.
    """
    lookup = look_up(lambda: [look_up_name(address)], deadline)
    address = address_at_store(address)
    text = f"{address} is {lookup.values[0]}" if lookup.values else f"{address}: {lookup.error}"
    advice = f"echo '{address} {host}' >> /etc/hosts on the host of rank 0, since torch's store "
    advice += "waits for it; or export RES_OPTIONS=attempts:0 on all ranks."
    found = f"{text} ({lookup.seconds:.2f} s)"
    return make_finding(name, lookup.seconds <= SLOW, found, advice)


def check_variable(backend: str, env: Env, available: Sequence[str]) -> Finding:
    """Check that the interfaces in GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME exist."""
    variable = f"{backend.upper()}_SOCKET_IFNAME"
    value = env.get(variable, "")
    text, missing = f"{variable} is not set; this machine has {', '.join(available)}", []
    if value:
        text = f"{variable}={value}"
        parts = [part.lstrip("=").partition(":")[0] for part in value.split(",")]
        by_start = backend == "nccl" and "=" not in value
        known = [name[: len(part)] if by_start else name for part in parts for name in available]
        missing = [] if value.startswith("^") else [part for part in parts if part not in known]
    text += f", but this machine has no {', '.join(missing)}" if missing else ""
    advice = f"export {variable}=<one of {', '.join(available)}>"
    return make_finding(f"{backend} interface", not missing, text, advice)


def check_shared_memory(folder: str = "/dev/shm") -> Finding:
    """Check the size of this machine's shared memory."""
    try:
        stats = os.statvfs(folder)
    except OSError:
        is_elsewhere = sys.platform != "linux"
        advice = f"mount -t tmpfs tmpfs {folder}"
        return make_finding("shared memory", is_elsewhere, f"no {folder}", advice)
    size = stats.f_blocks * stats.f_frsize
    text, advice = f"{size / GIB:.2f} GiB in {folder}", "docker run --ipc=host, or --shm-size=8g."
    return make_finding("shared memory", size >= MIN_SHARED_MEMORY, text, advice)


def as_text(findings: Sequence[Finding], *, width: int, ascii: bool = True) -> str:
    """Return findings as text, one or more lines each. A fix is one line, which can be copied."""
    names = max(len(finding.name) for finding in findings)
    lines = []
    for finding in findings:
        head = f"{'OK' if finding.ok else 'FAILED':6}  {finding.name:{names}}  "
        columns = max(width - len(head), MIN_CELL)
        texts = [part for line in finding.found.split("\n") for part in wrap_lines(line, columns)]
        texts += [f"Fix: {finding.advice}"] * bool(finding.advice)
        lines.append(head + f"\n{' ' * len(head)}".join(texts))
    return "\n".join([*lines, "", count_failed(findings)])


def count_failed(findings: Sequence[Finding]) -> str:
    """Return the sentence with the number of checks and the names of the failed ones."""
    wrong = [finding.name for finding in findings if not finding.ok]
    checks = count_noun(len(findings), "check")
    return f"{len(wrong)} of {checks} failed: {', '.join(wrong)}." if wrong else f"All {checks} OK."


def _add_options(parser: ArgumentParser) -> None:
    help = f"limit of one name lookup (default {DEADLINE:g})"
    parser.add_argument(
        "--timeout", type=read_seconds, default=DEADLINE, metavar="SECONDS", help=help
    )


DOCTOR = Command(
    "doctor",
    "check this machine and its launcher before a job",
    _add_options,
    run,
    ("", "--json --timeout 2"),
)
