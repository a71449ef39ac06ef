"""The layout of a distributed PyTorch job: a named grid of ranks, its groups, batches and seeds.

``import meshkit`` imports neither torch nor numpy. Each public name is imported on its first use::

    before any process   factor_world  split_world  Layout
                         BatchPlan  BatchSchedule  SequencePlan  stream_seed
                         plan_redistribution
    hardware             Topology  slurm_topology  crossings  placed
    this process         detect  World  init  shutdown  spawn
    the mesh             build_mesh  Mesh
    errors               MeshkitError and its children, see meshkit.core.errors

``meshkit.__version__`` is the version.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without the import of typing

if TYPE_CHECKING:
    from .core.batch import BatchPlan
    from .core.errors import (
        BatchError,
        CollectiveError,
        CoordinateError,
        DisagreementError,
        LaunchError,
        MeshkitError,
        RankTimeoutError,
        SpawnError,
        SpecError,
        UnknownAxisError,
    )
    from .core.group_plan import factor_world, split_world
    from .core.layout import Layout
    from .core.redistribute.report import plan_redistribution
    from .core.schedule import BatchSchedule
    from .core.seeds import stream_seed
    from .core.sequence import SequencePlan
    from .core.topology import Topology, crossings, placed
    from .launch.detect import detect
    from .launch.job import init, shutdown
    from .launch.slurm import slurm_topology
    from .launch.spawn import spawn
    from .launch.world import World
    from .live.build_mesh import build_mesh
    from .live.mesh import Mesh

    __version__: str

__all__ = [
    "BatchError",
    "BatchPlan",
    "BatchSchedule",
    "CollectiveError",
    "CoordinateError",
    "DisagreementError",
    "LaunchError",
    "Layout",
    "Mesh",
    "MeshkitError",
    "RankTimeoutError",
    "SequencePlan",
    "SpawnError",
    "SpecError",
    "Topology",
    "UnknownAxisError",
    "World",
    "build_mesh",
    "crossings",
    "detect",
    "factor_world",
    "init",
    "placed",
    "plan_redistribution",
    "shutdown",
    "slurm_topology",
    "spawn",
    "split_world",
    "stream_seed",
]

_MODULES = {
    "core.batch": ("BatchPlan",),
    "core.schedule": ("BatchSchedule",),
    "core.seeds": ("stream_seed",),
    "core.sequence": ("SequencePlan",),
    "core.group_plan": (
        "factor_world",
        "split_world",
    ),
    "core.layout": ("Layout",),
    "core.redistribute.report": ("plan_redistribution",),
    "core.topology": (
        "Topology",
        "crossings",
        "placed",
    ),
    "launch.job": (
        "init",
        "shutdown",
    ),
    "launch.detect": ("detect",),
    "launch.slurm": ("slurm_topology",),
    "launch.world": ("World",),
    "launch.spawn": ("spawn",),
    "live.build_mesh": ("build_mesh",),
    "live.mesh": ("Mesh",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    """Import a public name on its first use."""
    if name == "__version__":
        from .core.version import VERSION

        return VERSION
    if name not in __all__:
        raise AttributeError(f"module 'meshkit' has no attribute {name!r}")
    import importlib

    module = importlib.import_module(f".{_MODULE_OF.get(name, 'core.errors')}", __name__)
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
