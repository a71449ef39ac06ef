"""The layout of a distributed PyTorch job: a named grid of ranks, its groups, batches and seeds.

``import meshkit`` imports neither torch nor numpy; each public name is imported on its first use.
``meshkit.__version__`` is the version.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without the import of typing

if TYPE_CHECKING:
    __version__: str

    from .data.batch import BatchPlan as BatchPlan
    from .data.schedule import BatchSchedule as BatchSchedule
    from .data.seeds import stream_seed as stream_seed
    from .errors import BatchError as BatchError
    from .errors import CollectiveError as CollectiveError
    from .errors import CoordinateError as CoordinateError
    from .errors import DeviceMeshError as DeviceMeshError
    from .errors import DisagreementError as DisagreementError
    from .errors import LaunchError as LaunchError
    from .errors import MeshkitError as MeshkitError
    from .errors import NonfiniteError as NonfiniteError
    from .errors import RankTimeoutError as RankTimeoutError
    from .errors import SpawnError as SpawnError
    from .errors import SpecError as SpecError
    from .errors import UnknownAxisError as UnknownAxisError
    from .launch.detect import detect as detect
    from .launch.init import init as init
    from .launch.job import unbound as unbound
    from .launch.join import shutdown as shutdown
    from .launch.slurm import slurm_topology as slurm_topology
    from .launch.spawn import spawn as spawn
    from .launch.world import World as World
    from .layout.crossings import crossings as crossings
    from .layout.crossings import placed as placed
    from .layout.group_plan import factor_world as factor_world
    from .layout.group_plan import split_world as split_world
    from .layout.layout import Layout as Layout
    from .layout.sequence import SequencePlan as SequencePlan
    from .layout.topology import Topology as Topology
    from .mesh.build_mesh import build_mesh as build_mesh
    from .mesh.init_device_mesh import init_device_mesh as init_device_mesh
    from .mesh.mesh import Mesh as Mesh
    from .mesh.mesh import current_mesh as current_mesh
    from .redistribute.report import plan_redistribution as plan_redistribution

_NAMES = {
    "errors": "BatchError CollectiveError CoordinateError DeviceMeshError DisagreementError "
    "LaunchError MeshkitError NonfiniteError RankTimeoutError SpawnError SpecError "
    "UnknownAxisError",
    "data.batch": "BatchPlan",
    "data.schedule": "BatchSchedule",
    "data.seeds": "stream_seed",
    "layout.sequence": "SequencePlan",
    "layout.group_plan": "factor_world split_world",
    "layout.layout": "Layout",
    "redistribute.report": "plan_redistribution",
    "layout.topology": "Topology",
    "layout.crossings": "crossings placed",
    "launch.detect": "detect",
    "launch.slurm": "slurm_topology",
    "launch.job": "unbound",
    "launch.init": "init",
    "launch.join": "shutdown",
    "launch.spawn": "spawn",
    "launch.world": "World",
    "mesh.build_mesh": "build_mesh",
    "mesh.init_device_mesh": "init_device_mesh",
    "mesh.mesh": "Mesh current_mesh",
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> object:
    """Import a public name on its first use."""
    import importlib

    if name == "__version__":
        return importlib.import_module(".errors", __name__).VERSION
    if name not in _MODULE_OF:
        hint = importlib.import_module(".synonyms", __name__).module_hint(name, __all__)
        raise AttributeError(f"module 'meshkit' has no attribute {name!r}{'; ' * bool(hint)}{hint}")
    module = importlib.import_module(f".{_MODULE_OF[name]}", __name__)
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
