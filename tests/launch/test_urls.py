"""Hosts, and the URLs of stores: each value is parsed whole, or refused at once."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import meshkit
from meshkit.launch import join
from meshkit.launch.launchers import LAUNCHERS
from meshkit.launch.store import address
from meshkit.launch.urls import host_fault, join_host, url_fault
from tests.launch.recorded import ALL, Env

OF_GROUPS = ["224.0.0.1", "255.255.255.255", "ff02::1", "ff05::2"]


def is_of_one_host(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Return whether an address can be that of one host, without its interface."""
    text = str(address)
    is_own = text in ("0.0.0.0", "::") or text.startswith("::ffff:")
    is_group = address.is_multicast or text in OF_GROUPS
    return not (is_own or is_group or (address.version == 6 and address.is_link_local))


ADDRESSES = st.ip_addresses().filter(is_of_one_host).map(str)
LABELS = st.from_regex(r"[a-z0-9]([a-z0-9\-]{0,8}[a-z0-9])?", fullmatch=True)
NAMES = st.lists(LABELS, min_size=1, max_size=4).map(".".join).filter(lambda n: not n[-1].isdigit())
HOSTS = ADDRESSES | NAMES
PORTS = st.integers(1, 65535)
# texts that look like values, and others
PIECES = st.sampled_from(
    ["tcp", "://", ":", "[", "]", "fd00::55", "node1", "29500", "/", "?", " ", "-1", "\n", "%eth0"]
)
TEXTS = st.text() | st.lists(PIECES, max_size=6).map("".join)
NO_HOSTS = ["", " ", "node 1", "node1,node2", "-a", "a-", "a..b", ".a", "a" * 64, "b." * 127 + "c"]
NO_HOSTS += ["10.0.0", "256.0.0.1", "10.0.0.4.5", "1", "http://a", "a:1", "[fd00::1]", "fd00::g"]
NO_HOSTS += [
    "fd00::55:29500",
    "n\u00f6de",
    "\u0661\u0662",
    "fe80::1%",
    "a\0b",
    "$(hostname)",
    "<host>",
]
NO_HOSTS += [*OF_GROUPS, "fe80::1", "febf::1"]  # no process can connect to them
FILES = ["file:", "file:/", "file:///", "file://", "file://a", "file:a", "file:///a/", "file:///\0"]
FILE = "file:///shared/new-file"


@given(HOSTS, PORTS)
@example("fe80::1%eth0", 1)
@example("my_service", 1)
@example("123456789012", 1)  # the name of a container
def test_a_host_and_its_url_are_accepted(host: str, port: int) -> None:
    assert host_fault(host) is None
    world = meshkit.detect({}, rank=1, world_size=2, master_addr=host, master_port=port)
    assert (world.master_addr, world.master_port) == (host, port)
    for url in (f"tcp://{join_host(host, port)}", f"store://{join_host(host, port)}/job-1"):
        assert url_fault(url) is None
        assert address(replace(world, init_method=url)) == (host.lower(), port)


@pytest.mark.parametrize("text", NO_HOSTS)
def test_no_host(text: str) -> None:
    assert host_fault(text) is not None
    with pytest.raises(meshkit.LaunchError, match="master_addr is ") as caught:
        meshkit.detect({}, rank=0, world_size=2, master_addr=text)
    assert repr(text) in caught.value.summary
    if text.strip():
        environ = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": text}
        with pytest.raises(meshkit.LaunchError) as caught:
            meshkit.detect(environ)
        assert caught.value.variables == {"MASTER_ADDR": text}


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("tcp://fd00::55:29500", "tcp://[fd00::55]:29500"),
        ("tcp://fdbd:dc03:9:222:4300::55:29500", "tcp://[fdbd:dc03:9:222:4300::55]:29500"),
        ("tcp://fd00::55", "tcp://[fd00::55]:29500"),
        ("tcp://[fd00::55]", "tcp://[fd00::55]:29500"),
        ("tcp://::1:1234", "tcp://[::1]:1234"),
        ("tcp://[node1]:1234", "tcp://node1:1234"),
        ("tcp://node1", "tcp://node1:29500"),
        ("tcp://node1:", "tcp://node1:29500"),
        ("tcp://node1:0", "tcp://node1:29500"),
        ("tcp://node1:65536", "tcp://node1:29500"),
        ("tcp://node1:29500/", "tcp://node1:29500"),
        ("tcp://node1/", "tcp://node1:29500"),
        ("tcp://[node1]:1234/job", "tcp://node1:1234"),
        ("store://node1/job ", "store://node1:29500/job"),
        ("tcp://node1:29500?rank=1&world_size=2", "tcp://node1:29500"),
        ("store://fd00::5:29400/job-1", "store://[fd00::5]:29400/job-1"),
        ("node1:29500", "tcp://node1:29500"),
        ("node1", "tcp://node1:29500"),
        ("10.0.0.4:1/", "tcp://10.0.0.4:1"),
        ("fd00::1:29500", "tcp://[fd00::1]:29500"),
        ("/shared/file", "file:///shared/file"),
        ("env://?rank=0", "env://"),
        ("file://localhost/a", "file:///a"),
        ("/", ""),
        *((text, "") for text in ("C:\\x", "C:/x", "store:x", "node1:65536", "node1:x")),
        ("fd00::a", "tcp://[fd00::a]:29500"),
        ("[fd00::a]", "tcp://[fd00::a]:29500"),
        *((text, "") for text in ("tcp://[fe80::1]:1", "tcp://224.0.0.1:1", "a/b", "mpi://")),
        *(
            (text, "")
            for text in ("", "tcp://", "tcp://node 1:2", "tcp:/a:1", "tcp://u@a:1", "env:")
        ),
        ("file:/a", "file:///a"),
        ("FILE:/a", "file:///a"),
        ("File:///a/b", "file:///a/b"),
        ("TCP://h:1", "tcp://h:1"),
        ("Tcp://h", "tcp://h:29500"),
        ("STORE://h:1/job", "store://h:1/job"),
        ("ENV://", "env://"),
        *((text, "") for text in ("ray://a:1", "RAY://a:1")),
        *((text, "") for text in FILES),
    ],
)
def test_the_fix_of_a_url_is_another_url_that_works(text: str, meant: str) -> None:
    fault = url_fault(text)
    assert fault is not None
    assert fault.meant == meant
    with pytest.raises(meshkit.LaunchError) as caught:
        join.identify({"rank": 1, "world_size": 2}, text)
    assert repr(text) in caught.value.summary
    (proposed,) = re.findall('init_method="(.*)"', caught.value.fix_text)
    unknown = FILE if text in FILES else "tcp://<host of rank 0>:29500"
    assert proposed == (meant or unknown)
    assert not meant or url_fault(meant) is None


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("fd00::55:29500", "fd00::55", "29500"),
        ("[fd00::55]:29500", "fd00::55", "29500"),
        ("::1:29500", "::1", "29500"),
        ("node1:29500", "node1", "29500"),
        ("[node1]:29500", "node1", "29500"),
        ("[fd00::55]", "fd00::55", ""),
        ("[node1]", "node1", ""),
        ("node1:", "node1", ""),
        *((text, "", "") for text in ("node 1", "fd00::g", "a..b", "http://a:1")),
    ],
)
def test_the_fix_of_a_host_is_another_host_that_works(text: str, host: str, port: str) -> None:
    environ = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": text, "MASTER_PORT": "1"}
    _, error = detect_or_error(environ)
    fix = re.fullmatch("export MASTER_ADDR=(.+?)( MASTER_PORT=(.+))?, the same.*", error.fix_text)
    assert fix is not None
    assert (fix[1], fix[3] or "") == (host or "<host of rank 0>", port)
    if host:
        world = meshkit.detect({**environ, "MASTER_ADDR": fix[1], "MASTER_PORT": fix[3] or "1"})
        assert (world.master_addr, world.master_port) == (host, int(port or 1))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "0:0:0:0:0:0:0:0", "::ffff:0.0.0.0"])
def test_ranks_of_several_hosts_have_no_store_at_their_own_host(host: str) -> None:
    environ = {"RANK": "1", "WORLD_SIZE": "8", "MASTER_ADDR": host, "MASTER_PORT": "1"}
    _, error = detect_or_error(environ)
    assert error.variables == {"MASTER_ADDR": host}
    assert meshkit.detect({**environ, "MASTER_ADDR": "127.0.0.1"}).world_size == 8
    with pytest.raises(meshkit.LaunchError, match="master_addr"):
        meshkit.detect({}, rank=1, world_size=8, master_addr=host)
    with pytest.raises(meshkit.LaunchError, match="init_method"):
        join.identify({"rank": 1, "world_size": 8}, f"tcp://{join_host(host, 1)}")
    for own in ({"LOCAL_WORLD_SIZE": "8"}, {"RANK": "0", "WORLD_SIZE": "1"}):
        assert meshkit.detect({**environ, **own}).master_addr == host


@given(TEXTS)
def test_every_url_is_read_whole_or_refused(text: str) -> None:
    """The address that is read gives the URL again, and a proposed URL is accepted."""
    if (fault := url_fault(text)) is not None:
        assert not fault.meant or url_fault(fault.meant) is None
        with pytest.raises(meshkit.LaunchError):
            join.identify({"rank": 1, "world_size": 2}, text)
        return
    world = join.identify({"rank": 1, "world_size": 2}, text)
    host, port = address(world)
    if text.startswith(("tcp://", "store://")):
        assert host is not None
        assert port is not None
        place = text.partition("://")[2].partition("/")[0]
        assert place.rpartition(":")[0].strip("[]").lower() == host
        assert int(place.rpartition(":")[2]) == port
    else:
        assert text == "env://" or text.startswith("file://")


@given(TEXTS)
def test_every_host_is_an_address_or_labels(text: str) -> None:
    """Two derivations: torch's resolvers read ASCII labels, or what inet_pton reads."""
    try:
        address = ipaddress.ip_address(text)
        is_host = address.is_unspecified or is_of_one_host(address) or text.startswith("::ffff:")
    except ValueError:
        labels = text.removesuffix(".").split(".")
        is_host = all(re.fullmatch("(?!-)[A-Za-z0-9_-]{1,63}(?<!-)", label) for label in labels)
        is_host &= not labels[-1].isdecimal() or (len(labels) == 1 and int(labels[0]) >= 2**32)
    if "%" not in text and len(text) <= 253:
        assert (host_fault(text) is None) == is_host


@pytest.mark.parametrize("url", [b"tcp://a:1", 5, ["tcp://a:1"]])
def test_a_url_is_a_text(url: Any) -> None:
    with pytest.raises(meshkit.LaunchError, match="it is not a str"):
        join.identify({"rank": 1, "world_size": 2}, url)


NUMBERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_PORT")
NUMERALS = st.integers(-3, 10).map(str) | st.sampled_from(
    [
        "1.0",
        "1e1",
        "0x1",
        " 1 ",
        "1_0",
        "+1",
        "\u0661",
        "\u00b2",
        "9" * 30,
        "",
        "True",
        "nan",
        "1\0",
    ]
)


@pytest.mark.parametrize("name", NUMBERS)
@given(text=NUMERALS | st.text(max_size=4))
def test_a_number_is_read_whole_or_refused(name: str, text: str) -> None:
    environ = {"RANK": "0", "WORLD_SIZE": "8", "MASTER_ADDR": "a", name: text}
    world, error = detect_or_error(environ)
    if world is not None:
        assert re.fullmatch("[0-9]+", text.strip())
        assert getattr(world, name.lower()) == int(text)
    else:
        assert error.variables[name] == text
        assert repr(text) in str(error) or f"{name}={text}" in str(error)


def detect_or_error(environ: Env) -> tuple[meshkit.World | None, Any]:
    try:
        return meshkit.detect(environ), None
    except meshkit.LaunchError as error:
        return None, error


VARIABLES = sorted(
    {name for environ in ALL.values() for name in environ}
    | {name for row in LAUNCHERS for names in row.markers for name in names}
    | {"MESHKIT_COMPLETED", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"}
)
VALUES = (
    TEXTS | NUMERALS | st.sampled_from(["[]", "{}", "[1", "2(x2)", "n[1-2]", "[[], {}]", "null"])
)


@given(st.dictionaries(st.sampled_from(VARIABLES), VALUES, max_size=8), st.sampled_from([*ALL]))
@example({"MESHKIT_COMPLETED": "["}, "TORCHRUN")
@example({"MESHKIT_COMPLETED": "[1, 2]"}, "VOLCANO")
@example({"SLURM_STEP_TASKS_PER_NODE": "1(x1000000)," * 1000}, "SRUN")
def test_no_value_ends_detect_otherwise(changed: Env, name: str) -> None:
    """An environment gives a world, or an error of the launch."""
    world, error = detect_or_error({**ALL[name], **changed})
    if world is None:
        assert error.fix_text
        return
    assert 0 <= world.rank < world.world_size
    for field in ("local_world_size", "num_nodes"):
        assert (getattr(world, field) or 1) <= world.world_size


@pytest.mark.parametrize("text", ["x", "", "-1", "\u0663", "1.0"])
def test_the_count_of_restarts_is_a_number(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", text)
    with pytest.raises(meshkit.LaunchError) as caught:
        join.identify()
    assert caught.value.variables == {"TORCHELASTIC_RESTART_COUNT": text}
