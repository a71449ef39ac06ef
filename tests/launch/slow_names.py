"""A resolver that answers late: a library that stands before the one of C, and ranks that use it.

torch's store looks up the name of each client, in the one thread that serves all. The library
counts the lookups of names in a file, and sleeps in those that the environment names.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
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
    const char *which = getenv("SLOW_LOOKUP");
    if (host != NULL && !(flags & NI_NUMERICHOST)) {
        static int count;
        int number = __sync_add_and_fetch(&count, 1);
        int file = open(log, O_WRONLY | O_APPEND | O_CREAT, 0644);
        if (write(file, "x", 1) != 1) abort();
        close(file);
        if (seconds != NULL && (which == NULL || atoi(which) == number))
            usleep((useconds_t)(1e6 * atof(seconds)));
        flags |= NI_NUMERICHOST;
    }
    return next(address, length, host, host_size, service, service_size, flags);
}
"""

PROGRAM = """
import sys, time
import torch.distributed as dist
import meshkit
began = time.monotonic()
try:
    meshkit.init(arrival_timeout=float(sys.argv[1]))
    mesh = meshkit.build_mesh(dp=-1)
    mesh.barrier()
    with mesh.guard(timeout=60):
        mesh.agree("step", 1)
        time.sleep(1)  # the watching thread looks at the store
        mesh.barrier()
    dist.new_group()
    print("joined")
except meshkit.MeshkitError as error:
    print(f"{type(error).__name__}: {error}")
print(f"after {time.monotonic() - began:.1f} s")
"""


def build_library(folder: Path) -> Path:
    """Return the library, compiled."""
    source, library = folder / "names.c", folder / "names.so"
    source.write_text(SOURCE)
    command = ["gcc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return library


def start_ranks(
    library: Path, num_ranks: int, *argv: str, slow: Mapping[str, str] | None = None
) -> list[str]:
    """Return what each rank printed; ``slow`` are the variables of rank 0, which hosts the store.

    The lookups of a rank are counted in a file beside the library, named after the rank.
    """
    port, ranks = free_port(), []
    for rank in range(num_ranks):
        log = library.with_name(f"lookups-{rank}")
        log.unlink(missing_ok=True)
        environ = {
            **os.environ,
            **{"RANK": str(rank), "WORLD_SIZE": str(num_ranks), "LOCAL_RANK": str(rank)},
            **{"LOCAL_WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "localhost"},
            **{"MASTER_PORT": str(port), "LD_PRELOAD": str(library), "LOOKUPS": str(log)},
            **((slow or {}) if rank == 0 else {}),
        }
        command = [sys.executable, "-c", PROGRAM, *argv]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        ranks.append(subprocess.Popen(command, env=environ, **pipes))  # type: ignore[call-overload]
    try:
        return [rank.communicate(timeout=120)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def lookups(library: Path, rank: int) -> int:
    """Return how many names a rank has looked up."""
    log = library.with_name(f"lookups-{rank}")
    return len(log.read_text()) if log.exists() else 0
