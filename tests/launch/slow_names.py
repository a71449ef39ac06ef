"""A resolver that answers late: a library that stands before the one of C, and ranks that use it.

torch's store looks up the name of each client, in the one thread that serves all. The library
counts the lookups of names in a file, and sleeps in those that the environment names.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from meshkit.launch.world import free_port

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef int lookup(const struct sockaddr *, socklen_t, char *, socklen_t, char *, socklen_t, int);

int getnameinfo(const struct sockaddr *address, socklen_t length, char *host, socklen_t host_size,
                char *service, socklen_t service_size, int flags) {
    lookup *next = (lookup *)dlsym(RTLD_NEXT, "getnameinfo");
    const char *log = getenv("LOOKUPS"), *seconds = getenv("SLOW_SECONDS");
    const char *which = getenv("SLOW_LOOKUP"), *from = getenv("SLOW_FROM");
    if (host != NULL && !(flags & NI_NUMERICHOST)) {
        static int count;
        int number = __sync_add_and_fetch(&count, 1);
        int file = open(log, O_WRONLY | O_APPEND | O_CREAT, 0644);
        if (write(file, "x", 1) != 1) abort();
        close(file);
        if (seconds != NULL && (which == NULL || atoi(which) == number) &&
            (from == NULL || atoi(from) <= number))
            usleep((useconds_t)(1e6 * atof(seconds)));
        flags |= NI_NUMERICHOST;
    }
    return next(address, length, host, host_size, service, service_size, flags);
}
"""

# Each rank is forked from a process which has imported torch, and which ends after them. It starts
# a rank that was killed anew, once the others have recovered.
PROGRAM = """
import json, os, signal, sys, time
import torch
import torch.distributed as dist
import meshkit.mesh.build_mesh

def train(mesh, is_new):
    while mesh.size() < len(ranks) or not mesh.recovery.new_ranks:
        try:
            with mesh.guard(timeout=60):
                if mesh.rank == len(ranks) - 1 and not is_new:
                    os.kill(os.getpid(), signal.SIGKILL)
                dist.all_reduce(torch.ones(1), group=mesh.group())
            time.sleep(0.1)
            mesh = mesh.admit()
        except meshkit.CollectiveError:
            mesh = mesh.recover()
            print("recovered", flush=True)
    return mesh

def be_rank(arrival_timeout, is_new):
    began = time.monotonic()
    try:
        meshkit.init(arrival_timeout=arrival_timeout)
        mesh = meshkit.build_mesh(dp=-1)
        if loses:
            mesh = train(mesh, is_new)
        mesh.barrier()
        with mesh.guard(timeout=60):
            mesh.agree("step", 1)
            time.sleep(1)  # the watching thread looks at the store
            mesh.barrier()
        dist.barrier(dist.new_group())  # the host leaves after the others have connected
        print("joined")
    except meshkit.MeshkitError as error:
        print(f"{type(error).__name__}: {error}")
    print(f"after {time.monotonic() - began:.1f} s")

def start(rank, is_new=False):
    environ, output = ranks[rank]
    started = os.fork()
    if not started:
        os.environ.update(environ)
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
        be_rank(float(sys.argv[2]), is_new)
        sys.exit()
    return started

ranks, loses = json.loads(sys.argv[1]), json.loads(sys.argv[3])
running = {start(rank): rank for rank in range(len(ranks))}
while running:
    ended, status = os.wait()
    rank = running.pop(ended)
    if loses and status == signal.SIGKILL:
        while "recovered" not in open(ranks[0][1]).read():
            time.sleep(0.1)
        running[start(rank, is_new=True)] = rank
"""


def build_library(folder: Path) -> Path:
    """Return the library, compiled."""
    source, library = folder / "names.c", folder / "names.so"
    source.write_text(SOURCE)
    command = ["gcc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return library


def start_ranks(
    library: Path,
    num_ranks: int,
    arrival_timeout: float,
    slow: Mapping[str, str] | None = None,
    *,
    slow_elsewhere: Mapping[str, str] | None = None,
    loses: bool = False,
) -> list[str]:
    """Return what each rank printed; ``slow`` are the variables of rank 0, which hosts the store.

    ``slow_elsewhere`` are those of the other ranks. If the job ``loses`` a rank, the last one kills
    itself, is started anew, and is admitted by the others.

    The lookups of a rank are counted in a file beside the library, named after the rank.
    """
    port, ranks = free_port(), []
    outputs = [library.with_name(f"output-{rank}") for rank in range(num_ranks)]
    for rank, output in enumerate(outputs):
        log = library.with_name(f"lookups-{rank}")
        for file in log, output:
            file.unlink(missing_ok=True)
        environ = {
            **{"RANK": str(rank), "WORLD_SIZE": str(num_ranks), "LOCAL_RANK": str(rank)},
            **{"LOCAL_WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "localhost"},
            **{"MASTER_PORT": str(port), "LOOKUPS": str(log)},
            **((slow_elsewhere if rank else slow) or {}),
        }
        ranks.append((environ, str(output)))
    command = [sys.executable, "-c", PROGRAM, json.dumps(ranks), str(arrival_timeout)]
    command.append(json.dumps(loses))
    with subprocess.Popen(
        command, env={**os.environ, "LD_PRELOAD": str(library)}, start_new_session=True
    ) as parent:
        try:
            assert parent.wait(timeout=120) == 0
        finally:
            with suppress(ProcessLookupError):  # all have ended
                os.killpg(parent.pid, signal.SIGKILL)
    return [output.read_text() for output in outputs]


def lookups(library: Path, rank: int) -> int:
    """Return how many names a rank has looked up."""
    log = library.with_name(f"lookups-{rank}")
    return len(log.read_text()) if log.exists() else 0
