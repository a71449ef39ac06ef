"""The mesh under the real mpirun of Open MPI and mpiexec of MPICH, with and without mpi4py."""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path

import pytest

from meshkit.launch.world import free_port
from tests.launchers.checks import (
    PYTHON,
    check_records,
    clean_environ,
    read_records,
    require_programs,
)

OPEN_MPI = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np"]
MPICH = ["mpiexec.mpich", "-n"]
CASES = [
    pytest.param("openmpi", OPEN_MPI, "openmpi-bin", id="openmpi", marks=pytest.mark.slow),
    pytest.param("hydra", MPICH, "mpich", id="mpich"),
]
WAYS = {"exported": {"dp": 1, "sp": 2}, "one node": {"dp": 2}, "broadcast": {"dp": 2, "sp": 1}}
# Hides the number of ranks on the node, as if there were several nodes.
HIDE_NODE = ["env", "-u", "OMPI_COMM_WORLD_LOCAL_SIZE", "-u", "MPI_LOCALNRANKS"]
INIT = "import meshkit\ntry: meshkit.init(arrival_timeout=20)\nexcept meshkit.LaunchError as e: "


def abi_variables(name: str, folder: Path) -> dict[str, str]:
    """Return the variables with which mpi4py finds the library of an MPI; skip if one is missing.

    Debian has another name for the library of MPICH.
    """
    pytest.importorskip("mpi4py", reason="not installed: mpi4py (in the extra meshkit[test])")
    if name == "openmpi":
        return {"MPI4PY_MPIABI": "openmpi"}
    libraries = sorted(Path("/usr/lib").glob("*/libmpich.so.12"))
    if not libraries:
        pytest.skip("not on this machine: libmpich.so.12 (Debian's package libmpich12)")
    (folder / "libmpi.so.12").symlink_to(libraries[0])
    return {"MPI4PY_MPIABI": "mpich", "LD_LIBRARY_PATH": str(folder)}


@pytest.mark.parametrize(("name", "command", "package"), CASES)
def test_ranks_join_in_each_way(
    name: str, command: list[str], package: str, tmp_path: Path
) -> None:
    """A wrapper between mpirun and a rank does not change the file that the ranks share."""
    require_programs(package, command[0])
    environ = clean_environ(TMPDIR=str(tmp_path), **abi_variables(name, tmp_path))
    for way in ("unknown", *WAYS):
        (tmp_path / way).mkdir()
    wrapper = ["sh", "-c", '"$@"; exit $?', "wrapper"]
    job = [*PYTHON, str(Path(__file__).with_name("mpi_ways.py")), str(tmp_path), str(free_port())]
    command = [*command, "2", *wrapper, *job]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(2):
        summary = f"rank {rank} of 2 has no address of the job's store."
        assert (tmp_path / "unknown" / str(rank)).read_text() == summary
    records = {way: read_records(tmp_path / way) for way in WAYS}
    for way, sizes in WAYS.items():
        check_records(records[way], sizes, name)
    environs = [record["environ"] for record in records["one node"]]
    port = environs[0]["MASTER_PORT"]
    assert [[*environ.values()] for environ in environs] == [
        [str(rank), "2", str(rank), "2", "127.0.0.1", port] for rank in range(2)
    ]
    assert [*tmp_path.glob("meshkit-*/*")] == []  # the last rank removes the file
    sent = records["broadcast"]
    assert [record["world"][2:] for record in sent] == [[rank, 2] for rank in range(2)]
    (address,) = {tuple(record["address"]) for record in sent}
    assert (address[0], address[2]) == (socket.gethostname(), "broadcast by mpi4py")
    exported = [(r["environ"]["MASTER_ADDR"], int(r["environ"]["MASTER_PORT"])) for r in sent]
    assert exported == [address[:2]] * 2


@pytest.mark.slow
def test_mpi4py_of_another_mpi_raises(tmp_path: Path) -> None:
    """Under MPICH's mpiexec, mpi4py on Open MPI makes each process a job of one rank."""
    require_programs("mpich", MPICH[0])
    require_programs("openmpi-bin", OPEN_MPI[0])
    environ = clean_environ(**abi_variables("openmpi", tmp_path))
    code = f"{INIT}print(e) if meshkit.detect().rank == 1 else 0"
    command = [*MPICH, "2", *HIDE_NODE, PYTHON[0], "-W", "ignore", "-c", code]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
    assert "  mpi4py uses Open MPI v" in done.stdout, done.stdout + done.stderr
    assert "in which this is rank 0 of 1; MPI4PY_MPIABI=" in done.stdout


@pytest.mark.slow
def test_a_missing_rank_0_is_named(tmp_path: Path) -> None:
    require_programs("openmpi-bin", OPEN_MPI[0])
    code = (
        "import time, meshkit\nw = meshkit.detect()\n"
        "if w.rank == 0:\n"
        "    from mpi4py import MPI\n"
        "    time.sleep(40)\n"
        "else:\n"
        "    init = meshkit.init\n"  # imports torch
        "    try: init(arrival_timeout=2)\n"
        "    except meshkit.RankTimeoutError as e: print(e.missing_ranks, flush=True)\n"
    )
    environ = clean_environ(**abi_variables("openmpi", tmp_path))
    command = [*OPEN_MPI, "2", *HIDE_NODE, PYTHON[0], "-c", code]
    began = time.monotonic()
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
    assert time.monotonic() - began < 38  # no rank waits for rank 0 in MPI_Finalize
    assert done.stdout == "(0,)\n", done.stderr
