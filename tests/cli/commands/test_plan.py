"""``meshkit plan``: its text, its JSON, its errors and its exit codes."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from meshkit.cli import terminal
from meshkit.cli.main import main

ROOT = Path(__file__).parents[3]

Answers = Callable[[str], tuple[int, str, str]]


def run(command: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """A real run of ``python -m meshkit``."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "meshkit", *shlex.split(command)],
        env={**os.environ, **environ},
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )


SHEET = """\
dp=4 sp=2 tp=1: 8 ranks on 2 nodes of 4

axis  size  stride  groups  first group  crosses nodes
────  ────  ──────  ──────  ───────────  ─────────────
dp       4       2       2  0, 2, 4, 6   yes
sp       2       1       4  0, 1         no
tp       1       1       8  0            no

┌ node 0 ──────────┐  ┌ node 1 ──────────┐
│       sp=0  sp=1 │  │       sp=0  sp=1 │
│ dp=0     0     1 │  │ dp=2     4     5 │
│ dp=1     2     3 │  │ dp=3     6     7 │
└──────────────────┘  └──────────────────┘

groups  4 on each rank, the default group included; 15 in all
batch   global_batch 1024 = micro_batch 4 x accumulation_steps 64 x dp 4
"""

TWIN = """\
tp=4 dp=2: 8 ranks on 2 nodes of 4

axis  size  stride  groups  first group  crosses nodes
----  ----  ------  ------  -----------  -------------
tp       4       2       2  0, 2, 4, 6   yes
dp       2       1       4  0, 1         no

+ node 0 ----------+  + node 1 ----------+
|       dp=0  dp=1 |  |       dp=0  dp=1 |
| tp=0     0     1 |  | tp=2     4     5 |
| tp=1     2     3 |  | tp=3     6     7 |
+------------------+  +------------------+

groups   3 on each rank, the default group included; 7 in all
warning  tp crosses nodes: 2 of 2 groups span 2 nodes.
           tp communicates in every layer, so it needs the fastest links.
           Fix: order='dp tp'.
"""

BATCH = "--global-batch 1024 --micro-batch 4"
BIG = "--global-batch 5000 --micro-batch 1"


def test_the_sheet_of_a_job_word_for_word(answer: Answers) -> None:
    assert answer(f"plan dp=4 sp=2 tp=1 --nodes 2 {BATCH}") == (0, SHEET, "")


def test_its_ascii_twin_on_a_terminal_that_draws_no_lines() -> None:
    done = run("plan tp=4 dp=2 --order 'tp dp' --nodes 2", PYTHONIOENCODING="ascii", COLUMNS="80")
    assert (done.returncode, done.stdout, done.stderr) == (0, TWIN, "")


def test_nothing_is_coloured_and_the_columns_are_kept() -> None:
    done = run("plan dp=64 sp=16 tp=8 --nodes 64", COLUMNS="60", NO_COLOR="1", FORCE_COLOR="1")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 60
    wide = run("plan dp=64 sp=16 tp=8 --nodes 64", COLUMNS="160").stdout
    assert max(map(len, wide.splitlines())) > 80


def test_without_nodes_it_is_the_grid_alone(answer: Answers) -> None:
    code, text, _ = answer("plan dp=2 sp=2")
    assert code == 0
    assert text == (
        "dp=2 sp=2: 4 ranks\n\n"
        "axis  size  stride  groups  first group\n"
        "────  ────  ──────  ──────  ───────────\n"
        "dp       2       2       2  0, 2\n"
        "sp       2       1       2  0, 1\n\n"
        "      sp=0  sp=1\ndp=0     0     1\ndp=1     2     3\n\n"
        "groups  3 on each rank, the default group included; 5 in all\n"
    )


def test_the_json(answer: Answers) -> None:
    code, text, _ = answer(
        f"plan dp=-1 tp=2 --world-size 8 --nodes 2 --groups 'dp tp' --json {BATCH}"
    )
    assert code == 0
    reported = json.loads(text)
    assert reported["axes"][0] == {
        **{"axis": "dp", "size": 4, "stride": 2, "groups": 2, "first_group": [0, 2, 4, 6]},
        **{"crossing": 2, "spans": 2},
    }
    assert reported["batch"] == {
        **{"dp": 4, "global_batch": 1024, "micro_batch": 4, "accumulation_steps": 64},
        "uneven": False,
    }
    del reported["axes"], reported["batch"]
    assert reported == {
        "world_size": 8,
        "sizes": {"dp": 4, "tp": 2},
        "node_sizes": [4, 4],
        "groups_per_rank": 3,
        "groups": 7,
        "warnings": [],
        "placement": None,
    }


def test_sizes_are_nested_and_inferred_as_in_build_mesh(answer: Answers) -> None:
    assert answer("plan tp=2 sp=2 --world-size 12")[1].startswith("dp=3 sp=2 tp=2: 12 ranks\n")
    assert answer("plan tp=2 sp=2")[1].startswith("dp=1 sp=2 tp=2: 4 ranks\n")
    assert answer("plan tp=2 dp=-1 --world-size 4 --order 'tp dp'")[1].startswith(
        "tp=2 dp=2: 4 ranks\n"
    )


def test_nodes_that_differ(answer: Answers) -> None:
    _, text, _ = answer("plan dp=15 --nodes 7,8")
    assert text.startswith("dp=15: 15 ranks on 2 nodes of 7 and 8\n")


@pytest.mark.parametrize(
    "command",
    [
        "plan dp=4 sp=2 --world-size 6",
        "plan dp=-1 tp=2",
        "plan dp=4 sp=3 --nodes 5",
        "plan dp=4 --nodes 9",
        "plan dp=20 --nodes 9",
        "plan dp=8 --nodes 99999999999",
        "plan seq=1 --order seq --nodes 5",
        "plan dp=4 --nodes 7,8",
        "plan dp=4 --global-batch 100 --micro-batch 3",
        "plan x=8 --order x --global-batch 8 --micro-batch 1",
        "plan dp=2 ep=2 --global-batch 10 --micro-batch 1 --data dd",
        "plan dp=2 ep=2 --global-batch 10 --micro-batch 1",
        "plan dp=8 ep=4 --world-size 8",
        "plan shard=2 dp=2",
        "plan dp=4 --groups dd",
        "plan dp=4 dp=2",
        "plan four",
        *(f"plan dp={size}" for size in ("four", "0", "-2", "4.0", "1_0")),
        "plan dp=99999999999",
    ],
)
def test_an_invalid_command_is_quoted_as_typed(answer: Answers, command: str) -> None:
    code, out, err = answer(command)
    assert (code, out) == (2, "")
    assert err.startswith(f"meshkit {command}")
    assert "\n  Fix: " in err


def test_a_number_that_is_none_is_misuse(capsys: pytest.CaptureFixture[str]) -> None:
    refused = (("--world-size", "x"), ("--nodes", "2,"), ("--micro-batch", "0"))
    for option, text in refused:
        assert main(["plan", "dp=4", option, text]) == 2
        wrong = text.split(",")[-1]
        first, fix = capsys.readouterr().err.splitlines()
        typed = f"meshkit plan dp=4 {option} {text}"
        assert first == f"{typed}: {option}: '{wrong}' is not a whole number of 1 or more."
        assert fix.startswith("  Fix: for example meshkit plan ")


PURE = """
import sys
from meshkit.cli import terminal
from meshkit.cli.main import main
code = main({0!r})
print(code, 'numpy' in sys.modules, 'torch' in sys.modules)
"""


@pytest.mark.parametrize(
    "command",
    [
        "plan dp=4 --nodes 2 --json",
        "explain 1 dp=4 --nodes 2 --json --seed 1 --seq 8",
        "diff dp=4 dp=2 --json",
    ],
)
def test_no_torch_is_imported(command: str) -> None:
    code = PURE.format(shlex.split(command))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "0 True False", done.stderr


def test_a_hundred_thousand_ranks(answer: Answers) -> None:
    began = time.process_time()
    code, text, _ = answer(f"plan pp=10 dp=1250 tp=8 --nodes 12500 {BIG}")
    assert time.process_time() - began < 1  # 0.05 where nothing else runs
    assert code == 0
    assert len(text.splitlines()) < 60
    assert "pp=10 dp=1250 tp=8: 100000 ranks on 12500 nodes of 8\n" in text
    assert "... 12496 nodes more ...\n" in text
    assert "99999" in text


DEALT = "a\nb\n" * 4

PLACED = """\
dp=2 tp=4: 8 ranks on 2 nodes of 4, not in blocks: node 0 has ranks 0, 2, 4, 6

axis  size  stride  groups  first group  crosses nodes
----  ----  ------  ------  -----------  -------------
dp       2       4       4  0, 1         yes
tp       4       1       2  0, 2, 4, 6   no

+ node 0 ----------------------+  + node 1 ----------------------+
|       tp=0  tp=1  tp=2  tp=3 |  |       tp=0  tp=1  tp=2  tp=3 |
| dp=0     0     2     4     6 |  | dp=1     1     3     5     7 |
+------------------------------+  +------------------------------+

groups  3 on each rank, the default group included; 7 in all
placed  a node holds tp=4; a step sends 4 x dp out of the busiest node, 256 x dp
          before
          next best: a node holds dp=2 tp=2; a step sends 128 x dp out of the
            busiest node
"""


def test_hosts_from_a_file_and_ranks_placed_on_them(
    answer: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, picture = tmp_path / "hosts", tmp_path / "grid.svg"
    file.write_text(DEALT)
    command = f"plan dp=2 tp=4 --hosts {file}"
    monkeypatch.setattr(terminal, "get_line_characters", lambda: "")
    _, printed, _ = answer(command)
    assert "warning  tp crosses nodes: 2 of 2 groups span 2 nodes." in printed
    wrote = f"\nwrote {picture}: 8 ranks, 4 kB\n"
    assert answer(f"{command} --place --svg {picture}") == (0, PLACED + wrote, "")
    assert "<title>rank 2\ndp=0 tp=1\nnode 0<" in picture.read_text()
    _, printed, _ = answer(f"{command} --place --json")
    placement = json.loads(printed)["placement"]
    assert placement["ranks"] == [0, 2, 4, 6, 1, 3, 5, 7]
    assert (placement["cost"], placement["before"]) == ({"node": 4.0}, {"node": 256.0})


def test_what_cannot_be_of_hosts(answer: Answers, tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text(DEALT)
    for command in ("plan dp=2 tp=4 --place", f"plan dp=16 --hosts {file}"):
        code, out, err = answer(command)
        assert (code, out) == (2, "")
        assert err.startswith(f"meshkit {command}: ")
    file.write_text("a r1\na slots=8\n")
    assert answer(f"plan dp=2 --hosts {file}")[0] == 2


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("none", "No such file or directory"),
        ("''", "the file name is empty"),
        ("/dev/zero", "it is larger than 67108864 bytes"),
        ("a.out", "it is not UTF-8 text"),
        (".", "Is a directory"),
    ],
)
def test_a_file_of_hosts_that_cannot_be_read(
    answer: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.out").write_bytes(b"\xff\xfe")
    assert answer(f"plan dp=2 --hosts {path}") == (
        2,
        "",
        f"meshkit plan dp=2 --hosts {path}: {path} cannot be read: {reason}.\n"
        "  Fix: a text file with one line for each rank.\n",
    )
