"""Changes to torch's private API in the process of a rehearsed rank, whose peers do not run.

They stay until the process ends, in which :mod:`meshkit.rehearse.rank` plays one rank.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

BACKEND = "rehearsal"  # the name of the backend of recording groups
_kept: list[object] = []  # the kernels of a library end with its last reference


def record_every_group(
    create: Callable[[Any, object], dist.ProcessGroup],
    count: Callable[[int], None],
    rank: int,
    world_size: int,
) -> None:
    """Let torch create every group by ``create``, whatever its backend, and the default group now.

    Local. ``count`` gets torch's count of groups after each, and before it begins again.
    ``init_process_group`` then only creates a default group that a program has destroyed.
    """
    c10d: Any = dist.distributed_c10d
    helper, init = c10d._new_process_group_helper, c10d.init_process_group
    destroy = c10d.destroy_process_group
    devices = ["cpu", "meta", "cuda"]
    dist.Backend.register_backend(BACKEND, create, extended_api=True, devices=devices)

    def create_group(*args: object, **options: object) -> object:
        size, own, ranks, _, *more = args
        count(c10d._world.group_count)
        return helper(size, own, ranks, BACKEND, *more, **{**options, "device_id": None})

    def init_process_group(*_: object, **__: object) -> None:
        if not dist.is_initialized():
            init(BACKEND, store=dist.HashStore(), rank=rank, world_size=world_size)

    def destroy_process_group(group: dist.ProcessGroup | None = None) -> None:
        count(c10d._world.group_count)
        destroy(group)

    c10d._new_process_group_helper = create_group
    c10d.destroy_process_group = dist.destroy_process_group = destroy_process_group
    c10d.init_process_group = dist.init_process_group = init_process_group
    init_process_group()


def record_meta_collectives() -> None:
    """Let functional collectives of meta tensors reach their group, as those of other tensors do.

    Local. torch's kernels for them compute shapes, which suffices only while it traces a program.
    """
    import torch.distributed._functional_collectives as functional  # registers torch's kernels

    def kernel_of(name: str, trace: Callable[..., object]) -> Callable[..., object]:
        run = cast(Any, torch.library).get_kernel(f"_c10d_functional::{name}", "CPU")

        def kernel(keys: object, *args: object) -> object:
            is_traced = torch._guards.detect_fake_mode() is not None
            return trace(*args) if is_traced else run.call_boxed(keys, *args)

        return kernel

    library: Any = cast(Any, torch.library).Library("_c10d_functional", "IMPL")
    _kept.append(library)
    for operator in torch._C._dispatch_get_all_op_names():
        namespace, _, name = operator.partition("::")
        traces = (getattr(functional, f"_{name}_{end}", None) for end in ("native_meta", "meta"))
        trace = next(filter(None, traces), None)
        if namespace == "_c10d_functional" and trace is not None:
            kernel = kernel_of(name, trace)
            library.impl(name, kernel, "Meta", with_keyset=True, allow_override=True)


def allow_meta_training() -> None:
    """Let DDP, FSDP2 and DeviceMesh treat the meta device as an accelerator without streams. Local.

    DDP reads values when it compares the sizes of parameters between ranks, and when it agrees on
    other buckets after the first step. Both are left out.
    """
    from torch.distributed.fsdp._fully_shard import (
        _fsdp_collectives,
        _fsdp_init,
        _fsdp_param_group,
        _fully_shard,
    )
    from torch.nn.parallel import distributed

    vars(distributed)["_verify_param_shape_across_processes"] = lambda *_: None
    cast(Any, dist).Reducer._rebuild_buckets = lambda _: False
    vars(torch)["meta"] = torch.cpu
    # torch 2.15 records the stream of a gradient, and the CPU has none
    vars(_fsdp_collectives)["record_grad_output_stream"] = lambda *_: None
    group: Any = _fsdp_param_group.FSDPParamGroup
    group._validate_no_meta_params = lambda _: None
    find = _fsdp_init._get_device_from_mesh

    def device_of(mesh: DeviceMesh) -> torch.device:
        return torch.device("meta") if mesh.device_type == "meta" else find(mesh)

    for module in (_fsdp_init, _fully_shard):
        vars(module)["_get_device_from_mesh"] = device_of


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all tensors that operations of this thread make, while it is entered.

    Tensors inside an operation of DTensor are not seen, but its result is.
    """

    def __init__(self, memory: dict[str, int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.memory = memory  # gets the largest number so far, as "peak"
        self.sizes: dict[int, int] = {}  # of each storage that lives
        self.total = 0
        resize: Any = torch.UntypedStorage.resize_

        def resize_and_count(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
            resized: torch.UntypedStorage = resize(storage, size)  # FSDP2 frees weights so
            if id(storage) in self.sizes:
                self.count(id(storage), storage.nbytes())
            return resized

        cast(Any, torch.UntypedStorage).resize_ = resize_and_count

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True: torch.compile compiles as without this mode."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        """Run an operation, and count its results."""
        results = func(*args, **(kwargs or {}))
        for result in results if isinstance(results, list | tuple) else [results]:
            local: Any = getattr(result, "_local_tensor", getattr(result, "elem", result))
            if type(local) in (torch.Tensor, torch.nn.Parameter):
                storage = local.untyped_storage()
                if id(storage) not in self.sizes:
                    weakref.finalize(storage, self.count, id(storage), None)
                self.count(id(storage), storage.nbytes())
        return results

    def count(self, key: int, size: int | None) -> None:
        """Set the bytes of a storage; None if it no longer lives."""
        self.total += (size or 0) - self.sizes.pop(key, 0)
        if size is not None:
            self.sizes[key] = size
            self.memory["peak"] = max(self.memory.get("peak", 0), self.total)


def program_frames(libraries: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    """Yield the file and the line of each running frame outside some folders, the inner first."""
    frame = sys._getframe(1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(libraries):
            yield frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
