"""``meshkit rehearse`` beside the cost model, for a decoder that the model describes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.processes import ROOT, Answers, begun, ended

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


def rehearse(words: str) -> tuple[int, str, str]:
    """Run the command in a process of its own."""
    return ended(begun(*f"-m meshkit rehearse --world-size {8 * DP} {words}".split()))


@pytest.mark.slow
def test_the_seconds_of_a_decoder_are_those_of_the_cost_model(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG))
    batch = f"--seq {TOKENS} --micro-batch {BATCH} --global-batch {BATCH * DP} --shard fsdp"
    _, out, error = rehearse(
        f"--json --nodes {DP} --ranks 0 --device meta --model {config} {batch} "
        f"tests/cli/rehearsed_decoder.py {config} {TOKENS} {BATCH}"
    )
    facts = json.loads(out)
    assert facts["ok"], error
    for axis in ("dp", "tp"):
        recorded = facts["traffic"][axis]["seconds"]
        assert recorded == pytest.approx(facts["model_seconds"][axis], rel=0.02)
    assert facts["memory"]["peak"] > facts["memory"]["parameters"]


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ("--model llama3-8b --seq 8192 examples/train.py", "--global-batch"),
        ("--seq 8192 examples/train.py", "--seq is for --model.\n  Fix: leave out --seq."),
        # the words after the script are its own
        (
            "--nodess 8 examples/train.py --global_batch 256",
            "--nodes 8 examples/train.py --global_batch 256",
        ),
    ],
)
def test_misuse_is_refused_before_the_script_runs(
    answer: Answers, monkeypatch: pytest.MonkeyPatch, typed: str, text: str
) -> None:
    monkeypatch.chdir(ROOT)
    code, out, error = answer(f"rehearse --world-size {8 * DP} {typed}")
    assert (code, out) == (2, "")
    assert text in error


@pytest.mark.slow
def test_a_job_that_the_cost_model_cannot_price_keeps_its_report(tmp_path: Path) -> None:
    script = tmp_path / "alone.py"
    script.write_text("import meshkit\nmeshkit.init()\nmeshkit.build_mesh(mine=256)\n")
    _, out, _ = rehearse(f"--ranks 0 --model llama3-8b --seq 8 --global-batch 256 {script}")
    assert "The cost model has no seconds for this job: " in out
    assert "256 ranks" in out
