"""Hosts, and the URLs of stores, parsed whole. Pure.

::

    node1   node-1.cluster.local   10.0.0.4   fd00::55   fe80::1%eth0    hosts
    env://                                           MASTER_ADDR and MASTER_PORT
    tcp://node1:29500    tcp://[fd00::55]:29500      a store that rank 0 hosts
    store://node1:29400/job-1                        a store of `meshkit store`
    file:///shared/new-file                          a file that all ranks see

A value that is none of these is refused before anything waits for it, with the value and what was
probably meant.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import NamedTuple

from .endpoint import PORT, is_digits

MAX_PORT = 65535
MAX_NAME = 253  # characters of a host name (RFC 1035)
LARGEST_IPV4 = 2**32 - 1  # resolvers take a smaller number for an address
# Names of the loopback, beside localhost and its domains.
OWN_NAMES = {"localhost", "localhost4", "localhost6", "ip6-localhost", "ip6-loopback"}
ENV, FILE = "env://", "file://"
SCHEMES = ENV, FILE, "tcp://", "store://"
_LABEL = re.compile("[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?", re.ASCII)
_SCOPE = re.compile(r"[A-Za-z0-9_.\-]+", re.ASCII)
_FILE = re.compile(r"file:///[^\0]*[^\0/]", re.DOTALL)
_PLACE = re.compile(r"(tcp|store)://([^/?#]*)(/[^?#\0]*)?(.*)", re.DOTALL)


class Refusal(NamedTuple):
    """The reason why a value is refused, and the value that was probably meant."""

    reason: str
    meant: str = ""  # empty if it is unknown
    port: str = ""  # the port of a host that has one


def join_host(host: str, port: int) -> str:
    """Return a host and a port as one text, an IPv6 address in brackets.

    Example:
        >>> join_host("node1", 29500), join_host("fd00::55", 29500)
        ('node1:29500', '[fd00::55]:29500')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_fault(text: str) -> Refusal | None:
    """Return why a text is no host name and no address; None if it is one.

    Example:
        >>> host_fault("node 1").reason, host_fault("10.0.0.4")
        ('it is neither a host name nor an address', None)
    """
    if _is_host(text):
        return _unreachable(text)
    inner = text.removeprefix("[").removesuffix("]")
    if "://" in text:
        return Refusal("it is a URL")
    if inner != text and ":" in inner and _is_host(inner):
        return Refusal("brackets surround an address only before a port", inner)
    fault = place_fault(text)
    host, _, port = (text if fault is None else fault.meant).rpartition(":")
    if port and text.endswith(f":{port}"):
        return Refusal("a port is given apart from its host", host.strip("[]"), port)
    return Refusal("it is neither a host name nor an address", host.strip("[]"))


def _unreachable(host: str) -> Refusal | None:
    """Return why no process can connect to an address; None if one can, or for a name."""
    address = _address_of(host)
    if address is None:
        return None
    if address.is_multicast or str(address) == "255.255.255.255":
        return Refusal("it is the address of a group of hosts")
    if address.version == 6 and address.is_link_local and "%" not in host:
        return Refusal("a link-local address needs its interface, as fe80::1%eth0")
    return None


def is_unspecified(host: str) -> bool:
    """Return whether a host is an address by which every process reaches its own host.

    Example:
        >>> is_unspecified("0.0.0.0"), is_unspecified("::"), is_unspecified("node1")
        (True, True, False)
    """
    address = _address_of(host)
    return address is not None and address.is_unspecified


def is_own_host(host: str) -> bool:
    """Return whether every host calls itself so, by name, loopback or unspecified address.

    Example:
        >>> is_own_host("localhost"), is_own_host("::ffff:127.0.0.1"), is_own_host("localhost-2")
        (True, True, False)
    """
    address = _address_of(host)
    if address is not None:
        return address.is_loopback or address.is_unspecified
    name = host.removesuffix(".").lower()
    is_below = name.startswith(("localhost.", "localhost6.")) or name.endswith(".localhost")
    return name in OWN_NAMES or is_below


def url_fault(text: str) -> Refusal | None:
    """Return why a text is no URL of a store; None if it is one.

    Example:
        >>> url_fault("tcp://fd00::55:29500").meant
        'tcp://[fd00::55]:29500'
    """
    if text == ENV or _FILE.fullmatch(text):
        return None
    if (stripped := text.strip()) != text and url_fault(stripped) is None:
        return Refusal("it has blanks around it", stripped)
    scheme, colon, rest = text.partition(":")
    if scheme != scheme.lower() and f"{scheme.lower()}://" in SCHEMES:
        lower = f"{scheme.lower()}{colon}{rest}"
        return url_fault(lower) or Refusal("its scheme has capital letters", lower)
    if scheme == "file":
        path = rest.removeprefix("//localhost")
        meant = "" if path.startswith("//") else FILE + path  # of file:/path
        is_file = _FILE.fullmatch(meant) is not None
        reason = "it is not file:// and the absolute path of a file"
        return Refusal(reason, meant if is_file else "")
    match = _PLACE.fullmatch(text)
    if match is None:
        meant = _meant_url(text)
        return Refusal("it begins with none of tcp://, file://, env:// and store://", meant)
    scheme, place, path, query = match.groups()
    path, fault = (path or "").rstrip(), place_fault(place)
    meant = place if fault is None else fault.meant
    if query or (path and scheme == "tcp"):
        return Refusal("nothing may stand after the port", meant and f"{scheme}://{meant}")
    return fault and Refusal(fault.reason, meant and f"{scheme}://{meant}{path}")


def _meant_url(text: str) -> str:
    """Return the URL that was probably meant by a text without scheme, a path or a place."""
    if text.startswith("/"):
        meant = FILE + text
    elif text.startswith(ENV):
        meant = ENV
    elif "://" in text or text.rstrip("/").endswith(":"):
        meant = ""
    else:
        place = text.rstrip("/")
        _, colon, port = place.rpartition(":")
        has_port = is_digits(port) and 1 <= int(port) <= MAX_PORT
        is_place = has_port or not colon or _is_host(place.strip("[]"))  # no drive, as C:\\path
        fault = place_fault(place)
        meant = place if fault is None else fault.meant
        meant = f"tcp://{meant}" if meant and is_place else ""
    return meant if meant and url_fault(meant) is None else ""


def place_fault(place: str) -> Refusal | None:
    """Return why a text is not a host, a colon and a port; None if it is."""
    host, _, port = place.rpartition(":")
    if not _is_host(host.strip("[]")):  # the last colon is one of an IPv6 address, or there is none
        host, port = place, ""
    inner = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not _is_host(inner):
        return Refusal(f"{inner!r} is neither a host name nor an address" if inner else "no host")
    if fault := _unreachable(inner):
        return fault
    is_port = is_digits(port) and 1 <= int(port) <= MAX_PORT
    meant = join_host(inner, int(port) if is_port else PORT)
    if (":" in inner) != (inner != host):
        return Refusal("brackets surround an IPv6 address, and nothing else", meant)
    if not port:
        return Refusal("the port is missing", meant)
    return None if is_port else Refusal(f"the port {port!r} is not 1 to {MAX_PORT}", meant)


def _is_host(text: str) -> bool:
    """Return whether a text is a host name, or an address, of IPv6 with or without a scope."""
    if ":" in text:
        address, percent, scope = text.partition("%")
        return _is(IPv6Address, address) and (not percent or _SCOPE.fullmatch(scope) is not None)
    labels = text.removesuffix(".").split(".")
    if len(text) > MAX_NAME or not all(map(_LABEL.fullmatch, labels)):
        return False
    if not labels[-1].isdecimal():
        return True
    is_id = len(labels) == 1 and int(labels[0]) > LARGEST_IPV4  # the name of a container
    return is_id or _is(IPv4Address, text)


def _address_of(host: str) -> IPv4Address | IPv6Address | None:
    """Return the address that a host is, of IPv4 also where IPv6 embeds it; None for a name."""
    text = host.partition("%")[0]
    if not _is(IPv6Address if ":" in text else IPv4Address, text):
        return None
    address = ip_address(text)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _is(kind: type[IPv4Address] | type[IPv6Address], text: str) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True
