"""``meshkit rehearse`` beside the cost model, for a decoder that the model describes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFIG = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
}
TOKENS, BATCH, DP = 8192, 4, 32


def rehearse(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    command = [sys.executable, "-m", "meshkit", "rehearse", "--world-size", str(8 * DP), *words]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, timeout=300, check=False
    )


@pytest.mark.slow
def test_the_seconds_of_a_decoder_are_those_of_the_cost_model(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG))
    batch = f"--seq {TOKENS} --micro-batch {BATCH} --global-batch {BATCH * DP} --shard fsdp"
    done = rehearse(
        *f"--json --nodes {DP} --ranks 0 --device meta --model {config} {batch}".split(),
        *f"tests/cli/rehearsed_decoder.py {config} {TOKENS} {BATCH}".split(),
    )
    facts = json.loads(done.stdout)
    assert facts["ok"], done.stderr
    for axis in ("dp", "tp"):
        recorded = facts["traffic"][axis]["seconds"]
        assert recorded == pytest.approx(facts["model_seconds"][axis], rel=0.02)
    assert facts["memory"]["peak"] > facts["memory"]["parameters"]


def test_a_model_without_a_batch_is_refused() -> None:
    done = rehearse("--model", "llama3-8b", "--seq", "8192", "examples/train.py")
    assert done.returncode == 2
    assert "--global-batch" in done.stderr


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ("--seq 8192 examples/train.py", "--seq is for --model.\n  Fix: leave out --seq."),
        # the words after the script are its own
        (
            "--nodess 8 examples/train.py --global_batch 256",
            "--nodes 8 examples/train.py --global_batch 256",
        ),
    ],
)
def test_a_fix_leaves_the_words_of_the_script_alone(typed: str, text: str) -> None:
    done = rehearse(*typed.split())
    assert done.returncode == 2
    assert text in done.stderr


@pytest.mark.slow
def test_a_job_that_the_cost_model_cannot_price_keeps_its_report(tmp_path: Path) -> None:
    script = tmp_path / "alone.py"
    script.write_text("import meshkit\nmeshkit.init()\nmeshkit.build_mesh(mine=256)\n")
    done = rehearse(*f"--ranks 0 --model llama3-8b --seq 8 --global-batch 256 {script}".split())
    assert "The cost model has no seconds for this job: " in done.stdout
    assert "256 ranks" in done.stdout
