"""Whether the host of a store has left, as the kernel knows it."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from meshkit.launch.connection import Connection
from tests.preloaded_python import run_python


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def connect(server: socket.socket) -> tuple[socket.socket, socket.socket, Connection]:
    """Return both ends of a connection, and what looks at it."""
    address = server.getsockname()
    client = socket.create_connection(address)
    root = SimpleNamespace(underlying_store=SimpleNamespace(port=address[1]))
    return client, server.accept()[0], Connection(root)


@pytest.mark.parametrize("how", ["closed", "reset"])
def test_an_end_of_the_host_is_known_without_a_message(server: socket.socket, how: str) -> None:
    client, other, connection = connect(server)
    with client:
        assert not connection.has_ended()
        other.send(b"ab")
        assert not connection.has_ended()
        assert client.recv(2) == b"ab"  # the look took nothing
        if how == "reset":
            other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        other.close()
        assert connection.has_ended()
        assert connection.has_ended()
    assert not connection.has_ended()


def test_the_default_timeout_of_sockets_changes_no_connection(server: socket.socket) -> None:
    client, other, connection = connect(server)
    with client, other:
        socket.setdefaulttimeout(3)
        try:
            began = time.monotonic()
            assert not connection.has_ended()
            assert time.monotonic() - began < 2
        finally:
            socket.setdefaulttimeout(None)
        assert os.get_blocking(client.fileno())  # torch waits in it


def test_a_connection_that_ended_before_is_not_that_of_the_store(server: socket.socket) -> None:
    earlier, other, _ = connect(server)
    other.close()
    client, other, connection = connect(server)
    with earlier, client:
        assert not connection.has_ended()
        other.close()
        assert connection.has_ended()


def test_a_store_without_a_host_never_ends() -> None:
    assert not Connection(dist.HashStore()).has_ended()


# argv: the port of a store that does not answer any more; the process ends slowly
UNANSWERED = """
import os, sys, time
from dataclasses import replace
from meshkit.launch.open_store import open_store
from meshkit.launch.store import Store
from meshkit.launch.times import Deadline
from meshkit.launch.world import World
from meshkit.errors import RankTimeoutError

world = World(1, 2, 1, None, None, None, None, None, "hand-written")
world = replace(world, init_method=f"tcp://127.0.0.1:{sys.argv[1]}")
store = Store(open_store(world, Deadline.after(30)), world)
print("connected", store.has("key"), flush=True)
sys.stdin.readline()
try:
    store.within(0.2, lambda: store.has("key"))
except RankTimeoutError:
    print("lost", flush=True)

class Last:
    def __del__(self, write=os.write, sleep=time.sleep):
        write(1, b"ending\\n")  # no thread of Python may go on any more
        sleep(1)

sys.last = Last()
"""


def pass_on(source: socket.socket, target: socket.socket, may_pass: threading.Event) -> None:
    """Pass the bytes of a connection on to another one, each when it may pass."""
    while data := source.recv(4096):
        may_pass.wait(60)
        target.sendall(data)


def test_a_process_that_ends_without_an_answer_of_the_store_ends_well(
    server: socket.socket,
) -> None:
    """The answer comes while the interpreter ends, which aborts a thread that waits in torch."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    at_once, when_it_ends = threading.Event(), threading.Event()
    at_once.set()
    when_it_ends.set()
    command = [sys.executable, "-c", UNANSWERED, str(server.getsockname()[1])]
    with subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1, text=True) as process:
        server.settimeout(60)
        client, host = server.accept()[0], socket.create_connection(("127.0.0.1", store.port))
        with client, host:
            for ends in (client, host, at_once), (host, client, when_it_ends):
                threading.Thread(target=pass_on, args=ends, daemon=True).start()
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == "connected False\n"
            when_it_ends.clear()
            process.stdin.write("go on\n")
            process.stdin.flush()
            assert process.stdout.readline() == "lost\n"
            assert process.stdout.readline() == "ending\n"
            when_it_ends.set()
            assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 0


# a host forks, and its child ends as any process of Python does
FORKED = """
import os, sys, time
from dataclasses import replace
from meshkit.launch.open_store import open_store
from meshkit.launch.store import Store
from meshkit.launch.times import Deadline, run_with_deadline
from meshkit.launch.world import World, free_port

world = World(0, 2, 0, None, None, None, None, None, "hand-written")
world = replace(world, init_method=f"tcp://127.0.0.1:{free_port()}")
store = Store(open_store(world, Deadline.after(30)), world)
if os.fork() == 0:
    try:
        run_with_deadline(0.01, lambda: time.sleep(60))  # which still runs at the end
    except Exception:
        sys.exit()
os.wait()
store.within(5, lambda: store.set("key", "value"))
print(store.within(5, lambda: store.get("key")), flush=True)
"""


def test_a_forked_child_that_ends_leaves_the_connections_of_its_parent_alone() -> None:
    done = run_python(FORKED, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "b'value'\n", "")
