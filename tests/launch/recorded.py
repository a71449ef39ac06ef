"""Environments of real launchers, and the world that each yields, from environments.json.

An entry names the public source of its variables. ``opened`` says that the source was read for the
entry. *Recorded* environments come from a run, with hosts and jobs renamed. *Documented* ones have
their names from the source, and may have invented values. Unrelated variables are left out.
``world`` has the value and the source of each field that is not None, derived by hand from the
source.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Env = dict[str, str]
Fields = dict[str, tuple[Any, str]]  # field to value and source; a missing field is None

NUMBERS = ("rank", "world_size", "local_rank", "local_world_size", "node_rank", "num_nodes")
ENTRIES: dict[str, dict[str, Any]] = {
    entry["name"]: entry
    for entry in json.loads(Path(__file__).with_name("environments.json").read_text())
}
ALL: dict[str, Env] = {name: entry["environ"] for name, entry in ENTRIES.items()}

# Environment to its launcher and the fields that it yields.
EXPECTED: dict[str, tuple[str, Fields]] = {
    name: (entry["launcher"], {field: (v, source) for field, (v, source) in entry["world"].items()})
    for name, entry in ENTRIES.items()
    if entry["launcher"] != "single"
}
# A process that no launcher has numbered, to the source of its fields.
ALONE: dict[str, str] = {
    name: entry["world"]["rank"][1] for name, entry in ENTRIES.items() if name not in EXPECTED
}

ACCELERATE, TORCHRUN, SPAWN = ALL["ACCELERATE"], ALL["TORCHRUN"], ALL["SPAWN"]
OPEN_MPI_4, OPEN_MPI_5, MVAPICH2 = ALL["OPEN_MPI_4"], ALL["OPEN_MPI_5"], ALL["MVAPICH2"]
LSF, SRUN, INTERACTIVE = ALL["LSF"], ALL["SRUN"], ALL["INTERACTIVE"]
# The environment of a rank on Aurora: nothing says the number of ranks, see meta-pytorch/torchcomms
# pull request 79.
PALS_WITHOUT_PMI = {name: v for name, v in ALL["PALS_PMIX"].items() if name != "PALS_SIZE"}

# A row of the table of launchers to the environment of rank 3 of 4, without an outer launcher.
ROWS = {
    "accelerate": ACCELERATE,
    "torchrun": TORCHRUN,
    "spawn": SPAWN,
    "deepspeed": ALL["DEEPSPEED"],
    "hand-written": ALL["HAND_WRITTEN_NODES"],
    "horovod": ALL["HOROVOD"],
    "azureml": ALL["AZUREML"],
    "sagemaker": ALL["SAGEMAKER_ADDRESS"],
    "openmpi": OPEN_MPI_5,
    "mvapich2": MVAPICH2,
    "mvapich": ALL["MVAPICH_3"],
    "pals": ALL["PALS"],
    "flux": ALL["FLUX_NODES"],
    "hydra": ALL["MPICH"],
    "lsf": LSF,
    "slurm": SRUN,
}


def without(environ: Env, *names: str) -> Env:
    """Return an environment without some of its variables."""
    return {name: value for name, value in environ.items() if name not in names}
