"""The job of the tests of MPI: ranks that are started once join it in several ways, one by one.

::

    way          ranks of the node    address of rank 0         mpi4py
    unknown      hidden               none: init raises         cannot be imported
    exported     hidden               MASTER_ADDR               cannot be imported
    one node     known                none: they share a file   cannot be imported
    broadcast    hidden               none: rank 0 sends it     is there
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import meshkit
from tests.launchers.program import main

HIDDEN = "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"


def join_in_each_way(folder: str, port: str) -> None:
    """Write the records of each way into a folder of its own."""
    local = {name: os.environ.pop(name) for name in HIDDEN if name in os.environ}
    sys.modules["mpi4py"] = None  # type: ignore[assignment]  # an import raises ImportError
    try:
        meshkit.init(arrival_timeout=20)
    except meshkit.LaunchError as error:
        Path(folder, "unknown", str(meshkit.detect().rank)).write_text(error.summary)
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update(master)
    main(f"{folder}/exported", "dp=1", "sp=2")
    for name in master:
        del os.environ[name]
    os.environ.update(local)
    main(f"{folder}/one node", "dp=2")
    for name in local:
        del os.environ[name]
    del sys.modules["mpi4py"]
    main(f"{folder}/broadcast", "dp=2", "sp=1")


if __name__ == "__main__":
    join_in_each_way(*sys.argv[1:])
