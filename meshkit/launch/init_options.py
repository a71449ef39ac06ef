"""Options of ``init`` that it does not have: those of torch, of other calls, and misspelt ones.

::

    init("nccl")                 init(backend="nccl")
    init(device_id=0)            init(device=0): torch calls it device_id
    init(dp=4)                   init(), then build_mesh(dp=4)
    init(tiemout=60)             init(timeout=60)
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from ..core.call import Call
from ..core.errors import Change, Fix, SpecError
from ..core.grid.axis_names import BATCH_OPTIONS, INIT_OPTIONS, RESERVED, STANDARD
from ..core.grid.foreign_names import standard_axis

OPTIONS = (*sorted(INIT_OPTIONS), "backend", "timeout", "arrival_timeout")
TORCH_NAMES = {"device_id": "device", "url": "init_method", "dist_backend": "backend"}
TORCH_ONLY = ("store", "group_name", "pg_options")  # of init_process_group


def explain_init(args: Sequence[object], kwargs: Mapping[str, object]) -> SpecError | None:
    """Return the error if an argument is given by position, or has an unknown name."""
    if args:
        return _explain_position(args, kwargs)
    unknown = [name for name in kwargs if name not in OPTIONS]
    return _explain_name(unknown[0], kwargs) if unknown else None


def _explain_position(args: Sequence[object], kwargs: Mapping[str, object]) -> SpecError:
    """Return the error for arguments by position; the first one of torch is the backend."""
    option = "init_method" if "://" in str(args[0]) else "backend"
    named = {option: args[0]} if isinstance(args[0], str) else {"backend": "gloo"}
    call = Call("meshkit.init", kwargs={**named, **kwargs})
    more = "" if len(args) == 1 and args[0] in named.values() else ", and each argument by its name"
    return SpecError("init takes its arguments by name.", fix=f"{call}{more}.")


def _explain_name(name: str, kwargs: Mapping[str, object]) -> SpecError:
    """Return the error for an option that init does not have."""
    value, summary = kwargs[name], f"init has no option {name}."
    if axis := name if name in STANDARD else standard_axis(name):
        mesh = Call("meshkit.build_mesh", kwargs={axis: value})
        fix: Fix = (Change(**{name: None}), f", then {mesh}.")
        return SpecError(summary, f"{axis} is an axis of a mesh.", fix=fix)
    if name in BATCH_OPTIONS:
        fix = (Change(**{name: None}), f", then mesh.batch({name}={value!r}, ...).")
        return SpecError(summary, f"{name} is an option of mesh.batch.", fix=fix)
    if name in RESERVED:
        fix = (Change(**{name: None}), f", then meshkit.build_mesh(..., {name}={value!r}).")
        return SpecError(summary, f"{name} is an option of build_mesh.", fix=fix)
    if name in TORCH_ONLY:
        evidence = "Only init_process_group of torch has it; init then uses that default group."
        return SpecError(summary, evidence, fix=_torch_call(kwargs))
    close = [TORCH_NAMES[name]] if name in TORCH_NAMES else difflib.get_close_matches(name, OPTIONS)
    if close:
        return SpecError(summary, fix=(Change(**{name: None, close[0]: value}), "."))
    options = f"The options are {', '.join(sorted(OPTIONS))}."
    return SpecError(summary, options, fix=(Change(**{name: None}), "."))


def _torch_call(kwargs: Mapping[str, object]) -> str:
    """Return the calls that create the default group by torch's function."""
    call = Call("torch.distributed.init_process_group", kwargs=kwargs)
    return f"{call}, then meshkit.init()."
