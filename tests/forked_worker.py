"""Workers of pytest-xdist that are forked from a process which has imported torch already.

xdist starts each worker as a new interpreter. It imports torch, and so does its forkserver: with
four workers, torch was imported nine times. Here the process that xdist starts is this file, which
hands its streams to a process that the forkserver of the tests has forked, and ends with it. The
ranks of all workers are forked from the same forkserver.
"""

from __future__ import annotations

import atexit
import os
import shlex
import signal
import socket
import sys
import tempfile
import types
from multiprocessing import forkserver, resource_tracker

STREAMS = 0, 1, 2  # the standard streams


def interpreter_of_a_worker() -> str:
    """Fork a process for a worker, and return the command line that is its interpreter."""
    from meshkit.launch.worker import context_for, start_process

    address = os.path.join(tempfile.mkdtemp(prefix="worker-"), "socket")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        start_process(context_for(be_worker).Process(target=be_worker, args=(listener,)))
    return shlex.join([sys.executable, "-S", __file__, address])


def be_worker(listener: socket.socket) -> None:
    """Run the program that xdist sends, as a new interpreter would."""
    client = listener.accept()[0]  # closed when this process ends
    os.unlink(listener.getsockname())
    os.rmdir(os.path.dirname(listener.getsockname()))
    listener.close()
    for stream, received in zip(STREAMS, socket.recv_fds(client, 1, len(STREAMS))[1], strict=True):
        os.dup2(received, stream)
        os.close(received)
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(stream, mode, closefd=False) for stream, mode in zip(STREAMS, "rww", strict=True)
    )
    sys.argv = ["-c"]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.version_info < (3, 14):  # from 3.14 on, only the parent of a forkserver has its key
        # the forkserver is no child of this process, so Python would start another
        for place in forkserver, forkserver._forkserver:
            place.ensure_running = resource_tracker.ensure_running
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    exec("import sys\nexec(eval(sys.stdin.readline()))", vars(main))
    atexit._run_exitfuncs()


def hand_over(address: str) -> None:
    """Send the streams of this process to the worker, and wait for its end."""
    with socket.socket(socket.AF_UNIX) as worker:
        worker.connect(address)
        socket.send_fds(worker, [b"."], STREAMS)
        for stream in STREAMS:
            os.close(stream)
        worker.recv(1)


if __name__ == "__main__":
    hand_over(sys.argv[1])
