"""The command line of this program, for errors that say how to start it on several ranks."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

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


def start_command(world: World, num_ranks: int) -> str | None:
    """Return the command that starts this program on a number of ranks.

    None if it was started on several ranks already, or its command line is unknown.
    """
    program = program_arguments()
    if program is None or world.launcher != "single":
        return None
    if allocation_without_srun(world):
        return f"srun -n {num_ranks} python {program}"
    return f"torchrun --nproc-per-node {num_ranks} {program}"
