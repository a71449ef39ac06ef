"""The recipes of docs/coming-from for libraries that make a DeviceMesh run, from the page.

Each program stands whole in its page and runs on 8 ranks. The ranks have no GPU, so meshkit's
``init_device_mesh`` gets the device type of the job, also from a library that always says "cuda".
"""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.device_mesh as torch_mesh

import meshkit
from tests.interop.bare_packages import PEERS, import_alone
from tests.pages import ROOT, Output, read_blocks, rewrite

pytestmark = pytest.mark.skipif(
    not PEERS.is_dir(),
    reason="not installed: pip install --target .venv/more/peers -r .ci/peers.txt",
)

MODULES: dict[str, tuple[str, str]] = {  # page to the module that it imports, and mocked libraries
    "accelerate": ("", ""),
    "lightning": ("", ""),
    "torchtitan": ("torchtitan.distributed.parallel_dims", "tyro"),
    "veomni": ("veomni.distributed.parallel_state", "pylatexenc"),
    "verl": ("verl.workers.engine.fsdp.utils", "tensordict"),
    "deepspeed": (
        "openrlhf.utils.deepspeed.deepspeed",
        "deepspeed transformers optree peft flash_attn ring_flash_attn torchdata",
    ),
}
ARGS = SimpleNamespace(
    ds=SimpleNamespace(ring_attn_size=2, param_dtype="bf16"),
    train=SimpleNamespace(),
    local_rank=-1,
)


def run_program(code: str, module: str, mocked: str) -> str:
    """Run the program of a page on this rank; return what it prints."""
    real = meshkit.init_device_mesh

    def init_device_mesh(device_type: str, *sizes: Any, **options: Any) -> Any:
        return real("cpu", *sizes, **options)

    meshkit.init()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_mesh, "init_device_mesh", torch_mesh.init_device_mesh)  # put back
        patch.setattr(meshkit, "init_device_mesh", init_device_mesh, raising=True)
        patch.setattr(torch.cuda, "set_device", lambda device: None)
        patch.setenv("LOCAL_RANK", str(dist.get_rank()))  # as a launcher does
        import_alone(PEERS, module, mocked.split())
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(code, "train.py", "exec"), {"args": ARGS})
    return printed.getvalue()


@pytest.mark.parametrize("name", MODULES)
def test_the_program_of_a_page_prints_what_it_shows(name: str, updates_docs: bool) -> None:
    if name == "lightning" and not Path(PEERS, "lightning_utilities").is_dir():
        pytest.skip("an older .ci/peers.txt is installed")
    page = ROOT / "docs" / "coming-from" / f"{name}.md"
    blocks = read_blocks(page.read_text())
    (program,) = (block for block in blocks if block.title == "train.py")
    shown = blocks[blocks.index(program) + 1]
    printed = meshkit.spawn(run_program, 8, (program.body, *MODULES[name]), timeout=100)
    output = Output(shown.body, printed[5], shown.start, shown.end)
    if updates_docs:
        rewrite(page, [output])
        return
    assert output.shown == output.printed
