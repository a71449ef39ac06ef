"""Cases of errors that live raises in one process, before a job is joined."""

from __future__ import annotations

import meshkit
from meshkit import build_mesh
from meshkit.interop import deepspeed
from tests.messages.snapshot import unique

CASES = unique(
    ("build_mesh with positional sizes", lambda: build_mesh([4, 2])),
    ("build_mesh for more ranks than there are", lambda: build_mesh(dp=4, sp=2, tp=1)),
    ("build_mesh with an unknown axis", lambda: build_mesh(dp_size=1)),
    ("build_mesh with the options of other calls", lambda: build_mesh(dp=1, seed=1, micro_batch=4)),
    (
        "axes of a DeviceMesh in two arguments",
        lambda: meshkit.Mesh.device_mesh(None, "dp", "ep"),  # type: ignore[arg-type, call-arg]
    ),
    ("a number as the plan of DeepSpeed", lambda: deepspeed.config(5)),  # type: ignore[arg-type]
    (
        "build_mesh with the arguments of init_device_mesh",
        lambda: build_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp")),
    ),
    ("build_mesh with a group over an unknown axis", lambda: build_mesh(dp=1, groups=["dp ttp"])),
    ("build_mesh with ranks beside within", lambda: build_mesh(within={"tp": 1}, ranks=[0])),
    ("build_mesh with a rank outside the world", lambda: build_mesh(dp=1, ranks=[5])),
    (
        "build_mesh with an unknown crossing policy",
        lambda: build_mesh(dp=1, tp=1, crossing={"tp": "no"}),
    ),
    (
        "build_mesh with crossing as a str",
        lambda: build_mesh(dp=1, tp=1, crossing="tp"),
    ),
    (
        "build_mesh with sizes and ranks beside within",
        lambda: build_mesh(dp=1, tp=1, within={"tp": 1}, ranks=[0]),
    ),
    (
        "build_mesh with an unknown placement",
        lambda: build_mesh(dp=1, tp=1, place="near"),
    ),
    (
        "build_mesh placed on a topology of other ranks",
        lambda: build_mesh(dp=1, tp=1, place=meshkit.Topology.even(8, nodes=2)),
    ),
    (
        "build_mesh with a timeout of 0 for an axis",
        lambda: build_mesh(dp=1, tp=1, timeout={"tp": 0}),
    ),
    (
        "build_mesh with a timeout for an unknown axis",
        lambda: build_mesh(dp=1, tp=1, timeout={"tq": 30}),
    ),
)
