"""Hostile names and numbers: an error of ours in bounded time and memory, nothing unescaped."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

import meshkit

SECONDS, BYTES = 2.0, 500 * 2**20
BUSY = 6.0  # seconds that a busy machine adds; Python alone starts in one
MODEL = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
}
NAME = "<script>alert('1')</script>&\""


def limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (BYTES, BYTES))


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "meshkit", *words]
    began = time.monotonic()
    ran = subprocess.run(
        command, capture_output=True, text=True, check=False, preexec_fn=limit_memory, timeout=60
    )
    assert time.monotonic() - began < SECONDS + BUSY, words
    assert "Traceback" not in ran.stderr, ran.stderr
    return ran


def search(path: Path) -> subprocess.CompletedProcess[str]:
    sizes = ["--world-size", "64", "--nodes", "8", "--global-batch", "64", "--seq", "4096"]
    return run("search", *sizes, "--model", str(path))


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({**MODEL, "hidden_size": 10**400}),
        json.dumps({**MODEL, "hidden_size": float("nan")}),
        json.dumps({**MODEL, "num_hidden_layers": 1e400}),
        json.dumps({**MODEL, "hidden_size": [1]}),
        json.dumps({**MODEL, "vocab_size": -1}),
        "[" * 10_000 + "]" * 10_000,
        '{"a":' * 10_000 + "1" + "}" * 10_000,
        "9" * 100_000,
    ],
    ids=["10**400", "NaN", "inf", "list", "negative", "deep list", "deep object", "long number"],
)
def test_a_model_with_hostile_numbers_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(text)
    ran = search(path)
    assert ran.returncode, ran.stdout
    assert "Fix: " in ran.stderr or "error: " in ran.stderr, ran.stderr


@pytest.mark.parametrize("sizes", [["dp=1000000000"], ["dp=4", "tp=1" + "0" * 400], ["dp=1e400"]])
def test_a_grid_that_is_too_large_is_refused(sizes: list[str]) -> None:
    ran = run("plan", *sizes)
    assert ran.returncode
    assert "Fix: " in ran.stderr


WORLD = """
import resource, time
import meshkit
meshkit.detect, meshkit.init  # torch is imported here
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # that of pytest, if it is more
began = time.monotonic()
try:
    meshkit.init(rank=0, world_size=10**9, init_method="tcp://127.0.0.1:1")
except meshkit.LaunchError as error:
    print(error)
    assert time.monotonic() - began < 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + 500 * 1024
"""


def test_a_world_of_a_billion_ranks_is_refused() -> None:
    ran = subprocess.run([sys.executable, "-c", WORLD], capture_output=True, text=True, check=True)
    assert "at most 2097152 ranks." in ran.stdout


def test_markup_is_no_name_of_an_axis() -> None:
    with pytest.raises(meshkit.SpecError, match="cannot be the name of an axis"):
        meshkit.Layout({NAME: 2, "b": 2})
