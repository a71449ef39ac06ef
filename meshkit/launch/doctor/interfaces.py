"""Checks of what ranks of several machines need: names that resolve, interfaces that are there."""

from __future__ import annotations

import socket
from collections.abc import Collection, Mapping, Sequence

from .finding import Finding
from .network import (
    DEADLINE,
    Answer,
    addresses_of,
    carrier,
    interfaces,
    is_local,
    is_loopback,
    name_of,
    nccl_choice,
    wanted,
)
from ..launchers.variables import Env
from ..launchers.world import World

SLOW = 1.0  # seconds; a lookup that takes longer is felt
Interfaces = Mapping[str, Collection[str]]  # name to addresses


def wires(
    world: World | None, env: Env, *, nccl: bool, deadline: float = DEADLINE
) -> list[Finding]:
    """The host name there and back, that of the meeting, and the interfaces of gloo and NCCL.

    Args:
        world: who this process is; None where that is not clear.
        env: the variables to read.
        nccl: whether this torch has NCCL.
        deadline: seconds for each lookup.
    """
    host = socket.gethostname()
    answer = addresses_of(host, deadline)
    findings = [host_name(host, answer, world, env)]
    if answer.values:
        findings.append(reverse_name(host, answer.values[0], deadline))
    meeting = world.master_addr if world is not None else None
    if meeting and meeting != host:
        findings.append(resolved("master host", meeting, addresses_of(meeting, deadline)))
    found = interfaces()
    findings.append(gloo_interface(env, found, answer.values))
    if nccl or env.get("NCCL_SOCKET_IFNAME"):
        findings.append(nccl_interface(env, found))
    return findings


def host_name(host: str, answer: Answer, world: World | None, env: Env) -> Finding:
    """Whether this machine's name has an address that the other nodes can reach.

    Args:
        host: the name.
        answer: what its lookup gave.
        world: who this process is, or None.
        env: the variables; GLOO_SOCKET_IFNAME makes the name unimportant.
    """
    finding = resolved("host name", host, answer)
    nodes = world is not None and _several_nodes(world)
    if not nodes or not answer.values or not is_loopback(answer.values[0]):
        return finding
    if env.get("GLOO_SOCKET_IFNAME"):
        return finding
    text = f"{finding.found}\nno other node can reach that address"
    advice = f"export GLOO_SOCKET_IFNAME=<interface>, or mend the line of {host} in /etc/hosts."
    return Finding("host name", False, text, advice)


def resolved(name: str, host: str, answer: Answer) -> Finding:
    """Whether a host name has addresses, soon.

    Args:
        name: the finding's name.
        host: the name that was looked up.
        answer: what that gave.

    Example:
        >>> resolved("host name", "a", Answer(("10.0.0.3",), "", 0.001)).found
        'a is 10.0.0.3 (0.00 s)'
        >>> resolved("host name", "a", Answer((), "Name or service not known", 0.001)).advice
        "echo '<address> a' >> /etc/hosts, or mend the DNS of this node."
    """
    has = f"is {', '.join(answer.values)}" if answer.values else f"has no address: {answer.error}"
    address = answer.values[0] if answer.values else "<address>"
    advice = f"echo '{address} {host}' >> /etc/hosts, or mend the DNS of this node."
    return _soon(name, bool(answer.values), f"{host} {has}", answer, advice)


def reverse_name(host: str, address: str, deadline: float = DEADLINE) -> Finding:
    """Whether an address gives a name, or the word that it has none, soon.

    torch's TCP store asks for the name of whoever connects, and waits for it.

    Args:
        host: this machine's name, for the advice.
        address: this machine's address.
        deadline: seconds.
    """
    answer = name_of(address, deadline)
    told = f"{address} is {answer.values[0]}" if answer.values else f"{address}: {answer.error}"
    told = f"{address} has no name" if answer.values == (address,) else told
    advice = f"echo '{address} {host}' >> /etc/hosts on every node: torch's store waits for it."
    return _soon("reverse name", True, told, answer, advice)


def gloo_interface(env: Env, found: Interfaces, addresses: Sequence[str]) -> Finding:
    """The interfaces that GLOO_SOCKET_IFNAME names, else the one that has the host's address.

    Args:
        env: the variables to read.
        found: the interfaces there are.
        addresses: those of the host name. gloo takes the first that is this machine's.
    """
    said = env.get("GLOO_SOCKET_IFNAME", "")
    if len(said) > 1:  # torch takes no shorter one for a name
        missing = [name for name in said.split(",") if name not in found]
        return _said("gloo", said, missing, [], found)
    mine = next(filter(is_local, addresses), None)
    if mine is None:
        text = "the loopback, as the host name has no address of this machine"
        return Finding("gloo interface", False, text, _export("gloo", found))
    name = carrier(mine, found) or "unknown, but here"
    return Finding("gloo interface", True, f"{name} ({mine}, an address of the host name)")


def nccl_interface(env: Env, found: Interfaces) -> Finding:
    """The interfaces that NCCL_SOCKET_IFNAME picks, else those that NCCL takes by itself.

    Args:
        env: the variables to read.
        found: the interfaces there are.

    Example:
        >>> nccl_interface({"NCCL_SOCKET_IFNAME": "^lo"}, {"lo": [], "eth0": []}).found
        'NCCL_SOCKET_IFNAME=^lo picks eth0'
    """
    said = env.get("NCCL_SOCKET_IFNAME", "")
    if len(said) > 1:  # NCCL takes no shorter one for a name
        picked = wanted(said, found)
        return _said("nccl", said, [] if picked else [said], picked, found)
    names = ", ".join(nccl_choice(found)) or "unknown"
    return Finding("nccl interface", True, f"{names} (NCCL's own choice)")


def _soon(name: str, ok: bool, told: str, answer: Answer, advice: str) -> Finding:
    """A finding about a lookup, which has to be quick as well."""
    ok = ok and answer.seconds <= SLOW
    return Finding(name, ok, f"{told} ({answer.seconds:.2f} s)", "" if ok else advice)


def _said(
    kind: str, said: str, missing: list[str], picked: list[str], found: Interfaces
) -> Finding:
    """A finding about a variable that names interfaces."""
    text = f"{kind.upper()}_SOCKET_IFNAME={said}"
    if missing:
        text += f", and there is no {', '.join(missing)} here"
        return Finding(f"{kind} interface", False, text, _export(kind, found))
    text += f" picks {', '.join(picked)}" if picked else ""
    return Finding(f"{kind} interface", True, text)


def _export(kind: str, found: Interfaces) -> str:
    return f"export {kind.upper()}_SOCKET_IFNAME=<one of {', '.join(found)}>"


def _several_nodes(world: World) -> bool:
    local = world.local_world_size
    return (world.num_nodes or 1) > 1 or (local is not None and local < world.world_size)
