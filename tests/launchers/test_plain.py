"""The mesh without an external launcher: plain python, hand-written variables, meshkit.spawn."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import meshkit
from meshkit.launch.world import free_port
from tests.launchers.checks import check_records, clean_environ, program_command, read_records
from tests.preloaded_python import run_python


def run(arguments: list[str], environ: dict[str, str]) -> None:
    """Run the program in a process of its own."""
    code = "import runpy\nrunpy.run_path(sys.argv.pop(1), run_name='__main__')"
    done = run_python(f"import sys\n{code}", *arguments, environ=environ)
    assert done.returncode == 0, done.stderr


def test_plain_python(tmp_path: Path) -> None:
    sizes, out = {"dp": 1, "sp": 1, "tp": 1}, tmp_path / "out"
    run(program_command(out, sizes), clean_environ())
    check_records(read_records(out), sizes, "single")


def test_hand_written_variables(tmp_path: Path) -> None:
    """Detect with arguments, export and start the children, as a launcher of the user does."""
    sizes, out = {"dp": 1, "tp": 2}, tmp_path / "out"
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    environs = [clean_environ() for _ in range(2)]
    for rank, environ in enumerate(environs):
        meshkit.detect(master, rank=rank, world_size=2).export(environ)
        assert environ["WORLD_SIZE"] == "2"
        assert not {"LOCAL_RANK", "LOCAL_WORLD_SIZE"} & environ.keys()  # nobody said one node
    with ThreadPoolExecutor() as pool:
        assert [*pool.map(run, [program_command(out, sizes)] * 2, environs)] == [None] * 2
    records = read_records(out)
    check_records(records, sizes, "hand-written")
    assert [record["world"][2:] + record["node"] for record in records] == [
        [0, 2, 0, 1],
        [1, 2, 0, 1],
    ]
    assert [record["environ"]["LOCAL_RANK"] for record in records] == ["0", "1"]
