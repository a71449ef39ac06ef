"""The mesh under the real mpirun of Open MPI and mpiexec of MPICH, with and without mpi4py."""

from __future__ import annotations

import math
import socket
import subprocess
import time
from pathlib import Path

import pytest

from meshkit.launch.world import free_port
from tests.launchers.checks import PYTHON, check_records, clean_environ, require_programs, run_job

OPEN_MPI = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np"]
MPICH = ["mpiexec.mpich", "-n"]
OPEN_MPI_CASE = ("openmpi", OPEN_MPI, "openmpi-bin")
MPICH_CASE = ("hydra", MPICH, "mpich")
MPICH_SLOW = [
    pytest.param(*OPEN_MPI_CASE, {"dp": 1, "sp": 2}, id="openmpi"),
    pytest.param(*MPICH_CASE, {"dp": 2, "sp": 2, "tp": 1}, id="mpich", marks=pytest.mark.slow),
]
OPEN_MPI_SLOW = [
    pytest.param(*OPEN_MPI_CASE, id="openmpi", marks=pytest.mark.slow),
    pytest.param(*MPICH_CASE, id="mpich"),
]
# Hides the number of ranks on the node, as if there were several nodes.
HIDE_NODE = ["env", "-u", "OMPI_COMM_WORLD_LOCAL_SIZE", "-u", "MPI_LOCALNRANKS"]
# Lets an import of mpi4py fail, as if it were not installed.
WITHOUT = "import sys; sys.modules['mpi4py'] = None; "
RUN = "import runpy\nsys.argv = sys.argv[1:]\nrunpy.run_path(sys.argv[0], run_name='__main__')"
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


@pytest.mark.parametrize(("name", "command", "package", "sizes"), MPICH_SLOW)
def test_rank_0_broadcasts_its_address(
    name: str, command: list[str], package: str, sizes: dict[str, int], tmp_path: Path
) -> None:
    require_programs(package, command[0])
    count = math.prod(sizes.values())
    records = run_job(
        [*command, str(count), *HIDE_NODE, *PYTHON],
        tmp_path / "out",
        sizes,
        **abi_variables(name, tmp_path),
    )
    check_records(records, sizes, name)
    assert [record["world"][2:] for record in records] == [[rank, None] for rank in range(count)]
    (address,) = {tuple(record["address"]) for record in records}
    assert (address[0], address[2]) == (socket.gethostname(), "broadcast by mpi4py")
    (endpoint,) = {
        (record["environ"]["MASTER_ADDR"], int(record["environ"]["MASTER_PORT"]))
        for record in records
    }
    assert endpoint == tuple(address[:2])


@pytest.mark.parametrize(("name", "command", "package"), OPEN_MPI_SLOW)
def test_one_node_needs_neither_mpi4py_nor_an_address(
    name: str, command: list[str], package: str, tmp_path: Path
) -> None:
    """A wrapper between mpirun and a rank does not change the file that the ranks share."""
    require_programs(package, command[0])
    program = f"{WITHOUT}{RUN}"
    wrapper = ["sh", "-c", '"$@"; exit $?', "wrapper"]
    argv = [*command, "2", *wrapper, *PYTHON, "-c", program]
    records = run_job(argv, tmp_path / "out", {"dp": 2}, TMPDIR=str(tmp_path))
    check_records(records, {"dp": 2}, name)
    environs = [record["environ"] for record in records]
    port = environs[0]["MASTER_PORT"]
    assert [[*environ.values()] for environ in environs] == [
        [str(rank), "2", str(rank), "2", "127.0.0.1", port] for rank in range(2)
    ]
    assert [*tmp_path.glob("meshkit-*/*")] == []  # the last rank removes the file


@pytest.mark.parametrize(("name", "command", "package"), OPEN_MPI_SLOW)
def test_an_exported_address_needs_no_mpi4py(
    name: str, command: list[str], package: str, tmp_path: Path
) -> None:
    require_programs(package, command[0])
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    argv = [*command, "2", *HIDE_NODE, *PYTHON, "-c", f"{WITHOUT}{RUN}"]
    check_records(
        run_job(argv, tmp_path / "out", {"dp": 1, "sp": 2}, **address), {"dp": 1, "sp": 2}, name
    )


@pytest.mark.parametrize(("name", "command", "package"), OPEN_MPI_SLOW)
def test_an_unknown_address_of_rank_0_raises(name: str, command: list[str], package: str) -> None:
    require_programs(package, command[0])
    code = f"{WITHOUT}import meshkit\nif meshkit.detect().rank != 1: sys.exit()\n"
    code += f"{INIT}print(e.summary)"
    done = subprocess.run(
        [*command, "2", *HIDE_NODE, *PYTHON, "-c", code],
        env=clean_environ(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "rank 1 of 2 has no address of the job's store.\n", done.stderr


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
