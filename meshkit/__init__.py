"""The layout of a distributed PyTorch job: a named grid of ranks, its groups, batches and seeds.

``import meshkit`` imports neither torch nor numpy; each public name is imported on its first use.
``meshkit.__version__`` is the version.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without the import of typing

if TYPE_CHECKING:
    __version__: str

    from .core.batch import BatchPlan as BatchPlan
    from .core.errors import BatchError as BatchError
    from .core.errors import CollectiveError as CollectiveError
    from .core.errors import CoordinateError as CoordinateError
    from .core.errors import DisagreementError as DisagreementError
    from .core.errors import LaunchError as LaunchError
    from .core.errors import MeshkitError as MeshkitError
    from .core.errors import NonfiniteError as NonfiniteError
    from .core.errors import RankTimeoutError as RankTimeoutError
    from .core.errors import SpawnError as SpawnError
    from .core.errors import SpecError as SpecError
    from .core.errors import UnknownAxisError as UnknownAxisError
    from .core.group_plan import factor_world as factor_world
    from .core.group_plan import split_world as split_world
    from .core.layout import Layout as Layout
    from .core.redistribute.report import plan_redistribution as plan_redistribution
    from .core.schedule import BatchSchedule as BatchSchedule
    from .core.seeds import stream_seed as stream_seed
    from .core.sequence import SequencePlan as SequencePlan
    from .core.topology import Topology as Topology
    from .core.topology import crossings as crossings
    from .core.topology import placed as placed
    from .launch.detect import detect as detect
    from .launch.job import unbound as unbound
    from .launch.join import init as init
    from .launch.join import shutdown as shutdown
    from .launch.slurm import slurm_topology as slurm_topology
    from .launch.spawn import spawn as spawn
    from .launch.world import World as World
    from .live.build_mesh import build_mesh as build_mesh
    from .live.init_device_mesh import init_device_mesh as init_device_mesh
    from .live.mesh import Mesh as Mesh
    from .live.mesh import current_mesh as current_mesh

_NAMES = {
    "core.errors": "BatchError CollectiveError CoordinateError DisagreementError LaunchError "
    "MeshkitError NonfiniteError RankTimeoutError SpawnError SpecError UnknownAxisError",
    "core.batch": "BatchPlan",
    "core.schedule": "BatchSchedule",
    "core.seeds": "stream_seed",
    "core.sequence": "SequencePlan",
    "core.group_plan": "factor_world split_world",
    "core.layout": "Layout",
    "core.redistribute.report": "plan_redistribution",
    "core.topology": "Topology crossings placed",
    "launch.detect": "detect",
    "launch.slurm": "slurm_topology",
    "launch.job": "unbound",
    "launch.join": "init shutdown",
    "launch.spawn": "spawn",
    "launch.world": "World",
    "live.build_mesh": "build_mesh",
    "live.init_device_mesh": "init_device_mesh",
    "live.mesh": "Mesh current_mesh",
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_MODULE_OF)
_INIT = {  # names of other libraries for meshkit.init
    *("launch_from_torch", "launch_from_slurm", "launch_from_openmpi"),
    *("initialize_distributed_hpu", "initialize_distributed"),
    *("init_distributed", "init_process_group", "initialize"),
}


def __getattr__(name: str) -> object:
    """Import a public name on its first use."""
    import importlib

    if name == "__version__":
        return importlib.import_module(".core", __name__).VERSION
    if name not in _MODULE_OF:
        known = "; meshkit.init() joins the job of every launcher" if name in _INIT else ""
        raise AttributeError(f"module 'meshkit' has no attribute {name!r}{known}")
    value = globals()[name] = getattr(
        importlib.import_module(f".{_MODULE_OF[name]}", __name__), name
    )
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
