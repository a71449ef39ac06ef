"""Whether the host of a store has left, as the kernel knows it."""

from __future__ import annotations

import socket
import struct
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from meshkit.launch.connection import Connection


@pytest.mark.parametrize("how", ["closed", "reset"])
def test_an_end_of_the_host_is_known_without_a_message(how: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        connection = Connection(SimpleNamespace(underlying_store=SimpleNamespace(port=port)))
        assert not connection.has_ended()  # there is none
        with socket.create_connection(("127.0.0.1", port)) as client:
            other, _ = server.accept()
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


def test_a_store_without_a_host_never_ends() -> None:
    assert not Connection(dist.HashStore()).has_ended()
