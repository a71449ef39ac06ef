"""The example of a disagreement, as a user runs it."""

from __future__ import annotations

import re
import runpy
import socket

import pytest

from examples import disagree

ERROR = (
    "DisagreementError: ranks disagree about the mesh; no process group was created.\n"
    "  ranks 0-3 and 5-7:  dp=4 sp=2 tp=1\n"
    f"  rank 4 (host {socket.gethostname()}, pid 311):  dp=2 sp=4 tp=1\n"
    "  Fix: pass equal sizes on every rank.\n"
)


def test_every_rank_raises_the_same_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        runpy.run_path(disagree.__file__, run_name="__main__")
    assert re.sub(r"pid \d+", "pid 311", capsys.readouterr().out) == ERROR
