"""meshkit lays out a distributed PyTorch job: a named grid of ranks and everything that follows.

The door: every public name, imported when it is first used, so that ``import meshkit`` costs
next to nothing and torch is loaded only for what is live::

    before any process   factor_world  split_world  Layout  GroupPlan
                         BatchPlan  BatchSchedule  MicroBatch  SequencePlan
                         stream_seed
    which wires          Topology  slurm_topology  crossings  link_bytes
                         placed  Placement
    who am I             detect  World  init  shutdown  spawn
    the mesh             build_mesh  Mesh
    what is refused      MeshkitError and its children, see meshkit.core.errors
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing has it, without its import: a Ctrl-C there is nobody's yet

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
    from .core.factor import factor_world
    from .core.layout import Layout
    from .core.micro import MicroBatch
    from .core.plan import GroupPlan
    from .core.schedule import BatchSchedule
    from .core.sequence import SequencePlan
    from .core.split import split_world
    from .core.streams import stream_seed
    from .core.topology.crossing import crossings, link_bytes
    from .core.topology.placement import Placement, placed
    from .core.topology.topology import Topology
    from .launch.join import init, shutdown
    from .launch.launchers.detect import detect
    from .launch.launchers.slurm_topology import slurm_topology
    from .launch.launchers.world import World
    from .launch.spawn.spawn import spawn
    from .live.build import build_mesh
    from .live.data.rank_batch import RankBatch
    from .live.data.rng import RandomStreams
    from .live.data.sampler import MicroBatchSampler
    from .live.data.sequence import SequenceShard
    from .live.data.stream import MicroBatchStream
    from .live.mesh import Mesh

__all__ = [
    "BatchError",
    "BatchPlan",
    "BatchSchedule",
    "CollectiveError",
    "CoordinateError",
    "DisagreementError",
    "GroupPlan",
    "LaunchError",
    "Layout",
    "Mesh",
    "MeshkitError",
    "MicroBatch",
    "MicroBatchSampler",
    "MicroBatchStream",
    "Placement",
    "RandomStreams",
    "RankBatch",
    "RankTimeoutError",
    "SequencePlan",
    "SequenceShard",
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
    "link_bytes",
    "placed",
    "shutdown",
    "slurm_topology",
    "spawn",
    "split_world",
    "stream_seed",
]

_ROOMS = {
    "core.batch": ("BatchPlan",),
    "core.topology.crossing": ("crossings", "link_bytes"),
    "core.factor": ("factor_world",),
    "core.layout": ("Layout",),
    "core.micro": ("MicroBatch",),
    "core.topology.placement": ("Placement", "placed"),
    "core.plan": ("GroupPlan",),
    "core.schedule": ("BatchSchedule",),
    "core.sequence": ("SequencePlan",),
    "core.split": ("split_world",),
    "core.streams": ("stream_seed",),
    "core.topology.topology": ("Topology",),
    "launch.launchers.detect": ("detect",),
    "launch.join": ("init", "shutdown"),
    "launch.spawn.spawn": ("spawn",),
    "launch.launchers.slurm_topology": ("slurm_topology",),
    "launch.launchers.world": ("World",),
    "live.build": ("build_mesh",),
    "live.data.sampler": ("MicroBatchSampler",),
    "live.data.rank_batch": ("RankBatch",),
    "live.mesh": ("Mesh",),
    "live.data.rng": ("RandomStreams",),
    "live.data.stream": ("MicroBatchStream",),
    "live.data.sequence": ("SequenceShard",),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'meshkit' has no attribute {name!r}")
    import importlib

    room = importlib.import_module(f".{_ROOM_OF.get(name, 'core.errors')}", __name__)
    if name == "spawn":
        importlib.import_module(".live.preload", __name__).preload_mesh()
    value = globals()[name] = getattr(room, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
