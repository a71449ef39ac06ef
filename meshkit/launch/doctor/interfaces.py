"""Checks for jobs of several machines: host names that resolve, interfaces that exist."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from ..launchers.variables import Env
from ..launchers.world import World
from .finding import Finding
from .network import (
    DEADLINE,
    Interfaces,
    Lookup,
    default_nccl_interfaces,
    interface_of,
    is_local,
    is_loopback,
    list_interfaces,
    look_up_addresses,
    look_up_name,
    match_interfaces,
)

SLOW = 1.0  # seconds; a longer lookup delays every connection noticeably


def check_interfaces(
    world: World | None, env: Env, *, nccl: bool, deadline: float = DEADLINE
) -> list[Finding]:
    """Check the names of this host and of the master, and the interfaces of gloo and NCCL."""
    host = socket.gethostname()
    lookup = look_up_addresses(host, deadline)
    findings = [check_host_name(host, lookup, world, env)]
    if lookup.values:
        findings.append(check_reverse_name(host, lookup.values[0], deadline))
    master = world.master_addr if world is not None else None
    if master and master != host:
        findings.append(check_lookup("master host", master, look_up_addresses(master, deadline)))
    available = list_interfaces()
    findings.append(check_gloo_interface(env, available, lookup.values))
    if nccl or env.get("NCCL_SOCKET_IFNAME"):
        findings.append(check_nccl_interface(env, available))
    return findings


def check_host_name(host: str, lookup: Lookup, world: World | None, env: Env) -> Finding:
    """Check that this machine's name has an address that other nodes can reach."""
    finding = check_lookup("host name", host, lookup)
    is_reachable = not lookup.values or not is_loopback(lookup.values[0])
    if is_reachable or not _has_several_nodes(world) or env.get("GLOO_SOCKET_IFNAME"):
        return finding
    text = f"{finding.found}\nno other node can reach that address"
    advice = f"export GLOO_SOCKET_IFNAME=<interface>, or correct the line of {host} in /etc/hosts."
    return Finding("host name", False, text, advice)


def check_lookup(name: str, host: str, lookup: Lookup) -> Finding:
    """Check that a host name has addresses and that its lookup was fast."""
    state = f"is {', '.join(lookup.values)}" if lookup.values else f"has no address: {lookup.error}"
    address = lookup.values[0] if lookup.values else "<address>"
    advice = f"echo '{address} {host}' >> /etc/hosts, or repair the DNS of this node."
    return _with_duration(name, bool(lookup.values), f"{host} {state}", lookup, advice)


def check_reverse_name(host: str, address: str, deadline: float = DEADLINE) -> Finding:
    """Check that the reverse lookup of an address is fast, whether or not it finds a name.

    torch's TCPStore looks up the name of each client that connects, and waits for the result.
    """
    lookup = look_up_name(address, deadline)
    text = f"{address} is {lookup.values[0]}" if lookup.values else f"{address}: {lookup.error}"
    text = f"{address} has no name" if lookup.values == (address,) else text
    advice = f"echo '{address} {host}' >> /etc/hosts on every node: torch's store waits for it."
    return _with_duration("reverse name", True, text, lookup, advice)


def check_gloo_interface(env: Env, available: Interfaces, addresses: Sequence[str]) -> Finding:
    """Check the interfaces in GLOO_SOCKET_IFNAME, else the one with the host name's address."""
    value = env.get("GLOO_SOCKET_IFNAME", "")
    if len(value) > 1:  # torch ignores a shorter value
        missing = [name for name in value.split(",") if name not in available]
        return _from_variable("gloo", value, missing, [], available)
    address = next(filter(is_local, addresses), None)
    if address is None:
        text = "the loopback, because the host name has no address of this machine"
        return Finding("gloo interface", False, text, _export("gloo", available))
    name = interface_of(address, available) or "unknown interface of this machine"
    return Finding("gloo interface", True, f"{name} ({address}, an address of the host name)")


def check_nccl_interface(env: Env, available: Interfaces) -> Finding:
    """Check the interfaces that NCCL_SOCKET_IFNAME selects, else report NCCL's own choice."""
    value = env.get("NCCL_SOCKET_IFNAME", "")
    if len(value) > 1:  # NCCL ignores a shorter value
        selected = match_interfaces(value, available)
        return _from_variable("nccl", value, [] if selected else [value], selected, available)
    names = ", ".join(default_nccl_interfaces(available)) or "unknown"
    return Finding("nccl interface", True, f"{names} (NCCL's own choice)")


def _with_duration(name: str, ok: bool, text: str, lookup: Lookup, advice: str) -> Finding:
    """Return a finding about a lookup, which must be fast as well."""
    ok = ok and lookup.seconds <= SLOW
    return Finding(name, ok, f"{text} ({lookup.seconds:.2f} s)", "" if ok else advice)


def _from_variable(
    backend: str, value: str, missing: list[str], selected: list[str], available: Interfaces
) -> Finding:
    """Return a finding about a variable that names interfaces."""
    text = f"{backend.upper()}_SOCKET_IFNAME={value}"
    if missing:
        text += f", but this machine has no {', '.join(missing)}"
        return Finding(f"{backend} interface", False, text, _export(backend, available))
    text += f" selects {', '.join(selected)}" if selected else ""
    return Finding(f"{backend} interface", True, text)


def _export(backend: str, available: Interfaces) -> str:
    return f"export {backend.upper()}_SOCKET_IFNAME=<one of {', '.join(available)}>"


def _has_several_nodes(world: World | None) -> bool:
    if world is None:
        return False
    local = world.local_world_size
    return (world.num_nodes or 1) > 1 or (local is not None and local < world.world_size)
