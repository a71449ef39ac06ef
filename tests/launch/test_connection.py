"""Whether the host of a store has left, as the kernel knows it."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from meshkit.launch.connection import Connection


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
