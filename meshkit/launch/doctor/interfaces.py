"""Checks for jobs of several machines: host names that resolve, interfaces that exist."""

from __future__ import annotations

import socket
from collections.abc import Collection, Mapping, Sequence

from ..launchers.variables import Env
from ..launchers.world import World
from .finding import Finding
from .network import (
    DEADLINE,
    Lookup,
    addresses_of,
    interface_of,
    interfaces,
    is_local,
    is_loopback,
    match_interfaces,
    name_of,
    nccl_choice,
)

SLOW = 1.0  # seconds; a longer lookup delays every connection noticeably
Interfaces = Mapping[str, Collection[str]]  # name to addresses


def check_interfaces(
    world: World | None, env: Env, *, nccl: bool, deadline: float = DEADLINE
) -> list[Finding]:
    """Check this host's name and its reverse, the master's name, and gloo's and NCCL's interfaces.

    Args:
        world: the world of this process; None if its launcher's variables are invalid.
        env: the variables to read.
        nccl: whether this torch has NCCL.
        deadline: seconds for each lookup.
    """
    host = socket.gethostname()
    result = addresses_of(host, deadline)
    findings = [host_name(host, result, world, env)]
    if result.values:
        findings.append(reverse_name(host, result.values[0], deadline))
    master = world.master_addr if world is not None else None
    if master and master != host:
        findings.append(resolved("master host", master, addresses_of(master, deadline)))
    available = interfaces()
    findings.append(gloo_interface(env, available, result.values))
    if nccl or env.get("NCCL_SOCKET_IFNAME"):
        findings.append(nccl_interface(env, available))
    return findings


def host_name(host: str, result: Lookup, world: World | None, env: Env) -> Finding:
    """Check that this machine's name has an address that other nodes can reach.

    Args:
        host: the name.
        result: the lookup of its addresses.
        world: the world of this process, or None.
        env: the variables; with GLOO_SOCKET_IFNAME the address of the name is not used.
    """
    finding = resolved("host name", host, result)
    several = world is not None and _several_nodes(world)
    if not several or not result.values or not is_loopback(result.values[0]):
        return finding
    if env.get("GLOO_SOCKET_IFNAME"):
        return finding
    text = f"{finding.found}\nno other node can reach that address"
    advice = f"export GLOO_SOCKET_IFNAME=<interface>, or correct the line of {host} in /etc/hosts."
    return Finding("host name", False, text, advice)


def resolved(name: str, host: str, result: Lookup) -> Finding:
    """Check that a host name has addresses and that its lookup was fast.

    Args:
        name: the finding's name.
        host: the name that was looked up.
        result: the lookup of its addresses.

    Example:
        >>> resolved("host name", "a", Lookup(("10.0.0.3",), "", 0.001)).found
        'a is 10.0.0.3 (0.00 s)'
        >>> resolved("host name", "a", Lookup((), "Name or service not known", 0.001)).advice
        "echo '<address> a' >> /etc/hosts, or repair the DNS of this node."
    """
    state = f"is {', '.join(result.values)}" if result.values else f"has no address: {result.error}"
    address = result.values[0] if result.values else "<address>"
    advice = f"echo '{address} {host}' >> /etc/hosts, or repair the DNS of this node."
    return _with_duration(name, bool(result.values), f"{host} {state}", result, advice)


def reverse_name(host: str, address: str, deadline: float = DEADLINE) -> Finding:
    """Check that the reverse lookup of an address is fast, whether or not it finds a name.

    torch's TCPStore looks up the name of each client that connects, and waits for the result.

    Args:
        host: this machine's name, for the advice.
        address: this machine's address.
        deadline: seconds.
    """
    result = name_of(address, deadline)
    text = f"{address} is {result.values[0]}" if result.values else f"{address}: {result.error}"
    text = f"{address} has no name" if result.values == (address,) else text
    advice = f"echo '{address} {host}' >> /etc/hosts on every node: torch's store waits for it."
    return _with_duration("reverse name", True, text, result, advice)


def gloo_interface(env: Env, available: Interfaces, addresses: Sequence[str]) -> Finding:
    """Check the interfaces in GLOO_SOCKET_IFNAME, else the one with the host name's address.

    Args:
        env: the variables to read.
        available: the interfaces of this machine.
        addresses: the addresses of the host name. gloo uses the first that this machine has.
    """
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


def nccl_interface(env: Env, available: Interfaces) -> Finding:
    """Check the interfaces that NCCL_SOCKET_IFNAME selects, else report NCCL's own choice.

    Args:
        env: the variables to read.
        available: the interfaces of this machine.

    Example:
        >>> nccl_interface({"NCCL_SOCKET_IFNAME": "^lo"}, {"lo": [], "eth0": []}).found
        'NCCL_SOCKET_IFNAME=^lo selects eth0'
    """
    value = env.get("NCCL_SOCKET_IFNAME", "")
    if len(value) > 1:  # NCCL ignores a shorter value
        selected = match_interfaces(value, available)
        return _from_variable("nccl", value, [] if selected else [value], selected, available)
    names = ", ".join(nccl_choice(available)) or "unknown"
    return Finding("nccl interface", True, f"{names} (NCCL's own choice)")


def _with_duration(name: str, ok: bool, text: str, result: Lookup, advice: str) -> Finding:
    """Return a finding about a lookup, which must be fast as well."""
    ok = ok and result.seconds <= SLOW
    return Finding(name, ok, f"{text} ({result.seconds:.2f} s)", "" if ok else advice)


def _from_variable(
    kind: str, value: str, missing: list[str], selected: list[str], available: Interfaces
) -> Finding:
    """Return a finding about a variable that names interfaces."""
    text = f"{kind.upper()}_SOCKET_IFNAME={value}"
    if missing:
        text += f", but this machine has no {', '.join(missing)}"
        return Finding(f"{kind} interface", False, text, _export(kind, available))
    text += f" selects {', '.join(selected)}" if selected else ""
    return Finding(f"{kind} interface", True, text)


def _export(kind: str, available: Interfaces) -> str:
    return f"export {kind.upper()}_SOCKET_IFNAME=<one of {', '.join(available)}>"


def _several_nodes(world: World) -> bool:
    local = world.local_world_size
    return (world.num_nodes or 1) > 1 or (local is not None and local < world.world_size)
