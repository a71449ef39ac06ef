"""Default groups that are written in Python, and torch's fake ones."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.preloaded_python import run_python

HEAD = """
import torch, torch.distributed as dist, meshkit
from torch.testing._internal.distributed.fake_pg import FakeStore

class Group(dist.ProcessGroup):
    def __init__(self, rank, size):
        super().__init__(rank, size)
        self.names = {}
    def getBackendName(self):
        return "recorded"
    def _set_group_name(self, name):
        self.names["name"] = name
    def _set_group_desc(self, desc):
        self.names["desc"] = desc
    group_name = property(lambda self: self.names["name"])
    group_desc = property(lambda self: self.names.get("desc", ""))

def create(store_options, options):
    return Group(store_options.group_rank, store_options.group_size)

dist.Backend.register_backend("recorded", create, extended_api=True, devices=["cpu"])
"""
BODY = """
world = meshkit.init()
root = meshkit.init_device_mesh("cpu", (SIZE // 2, 2), mesh_dim_names=("dp", "tp"))
mesh = meshkit.Mesh.of(root)
if isinstance(store, FakeStore):
    mesh.barrier()
    mesh.barrier("tp")
print(world.rank, world.world_size, world.backend, mesh.coordinate, root.get_group("tp").size())
"""


def play(backend: str, store: str, rank: int, size: int) -> str:
    program = (
        f"{HEAD}\nstore, SIZE = {store}, {size}\n"
        f"dist.init_process_group({backend!r}, store=store, rank={rank}, world_size={size})\n{BODY}"
    )
    run = run_python(program)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


@pytest.mark.parametrize("backend", ["recorded", "fake"])
def test_one_rank_is_played_with_a_fake_store(backend: str) -> None:
    played = play(backend, "FakeStore()", 1017, 1024)
    assert played == f"1017 1024 {backend} {{'dp': 508, 'tp': 1}} 2"


def test_ranks_of_a_group_in_python_compare_their_requests(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    begin = f"""
{HEAD}
from tests.faults import error_of
import sys
rank = int(sys.argv[1])
store = dist.FileStore({path!r}, 2)
dist.init_process_group("recorded", store=store, rank=rank, world_size=2)
meshkit.init()
shape = (2, 1) if rank else (1, 2)
print(error_of(lambda: meshkit.init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp")))[0])
print(meshkit.Mesh.of(meshkit.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))).coordinate)
"""
    with ThreadPoolExecutor(2) as threads:
        ended = [*threads.map(lambda rank: run_python(begin, str(rank)), range(2))]
    for rank, run in enumerate(ended):
        assert run.stdout.split("\n")[:2] == ["DisagreementError", f"{{'dp': {rank}}}"], run.stderr
