"""The command line of this program, for errors that say how to start it on several ranks."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from ...core.errors import CALL, SpecError
from .detect import allocation_without_srun
from .world import World


def program_arguments() -> str | None:
    """Return this program as it follows ``python``: ``train.py --dp 4``, ``-m package``.

    None for a prompt, a notebook or ``python -c``.
    """
    main = sys.modules.get("__main__")
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        words = ["-m", str(spec.name).removesuffix(".__main__")]
    elif file is not None and Path(file).exists():
        words = [sys.argv[0] if Path(sys.argv[0]).is_file() else file]
    else:
        return None
    return shlex.join([*words, *sys.argv[1:]])


def propose_command(error: SpecError, world: World, num_ranks: int) -> None:
    """Let the error of a program without launcher propose the command that starts enough ranks."""
    if world.launcher == "single" and num_ranks > world.world_size:
        error.fix = start_command(world, num_ranks)


def start_command(world: World, num_ranks: int) -> str:
    """Return the command that starts this program on a number of ranks, or a call of spawn."""
    program = program_arguments()
    if program is None:
        return f"meshkit.spawn(fn, {num_ranks}), with {CALL} in fn."
    if allocation_without_srun(world):
        return f"srun -n {num_ranks} python {program}"
    return f"torchrun --nproc-per-node {num_ranks} {program}"
