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
        UnplacedAxisError,
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
    from .launch.environment import detect
    from .launch.join import init, shutdown
    from .launch.spawn import spawn
    from .launch.switches import slurm_topology
    from .launch.world import World
    from .live.build import build_mesh
    from .live.data import MicroBatchSampler
    from .live.loop import RankPlan
    from .live.mesh import Mesh
    from .live.seeds import RandomStreams
    from .live.sequence import SequenceShard
    from .live.stream import MicroBatchStream

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
    "RankPlan",
    "RankTimeoutError",
    "SequencePlan",
    "SequenceShard",
    "SpawnError",
    "SpecError",
    "Topology",
    "UnknownAxisError",
    "UnplacedAxisError",
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
    "core.crossing": ("crossings", "link_bytes"),
    "core.factor": ("factor_world",),
    "core.layout": ("Layout",),
    "core.micro": ("MicroBatch",),
    "core.placement": ("Placement", "placed"),
    "core.plan": ("GroupPlan",),
    "core.schedule": ("BatchSchedule",),
    "core.sequence": ("SequencePlan",),
    "core.split": ("split_world",),
    "core.streams": ("stream_seed",),
    "core.topology": ("Topology",),
    "launch.environment": ("detect",),
    "launch.join": ("init", "shutdown"),
    "launch.spawn": ("spawn",),
    "launch.switches": ("slurm_topology",),
    "launch.world": ("World",),
    "live.build": ("build_mesh",),
    "live.data": ("MicroBatchSampler",),
    "live.loop": ("RankPlan",),
    "live.mesh": ("Mesh",),
    "live.seeds": ("RandomStreams",),
    "live.stream": ("MicroBatchStream",),
    "live.sequence": ("SequenceShard",),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'meshkit' has no attribute {name!r}")
    import importlib

    room = importlib.import_module(f".{_ROOM_OF.get(name, 'core.errors')}", __name__)
    value = globals()[name] = getattr(room, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
