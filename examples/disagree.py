"""Eight ranks, one of which has another config: the error that every rank raises, at once.

    python examples/disagree.py

torch's ``init_device_mesh`` hangs here, or computes a wrong sum, as its documentation says.
"""

from __future__ import annotations

import sys

import meshkit


def ask(odd: int) -> str:
    """Build a mesh with other sizes on one rank, and return the mesh or the error."""
    sizes = {"dp": 2, "sp": 4} if meshkit.detect().rank == odd else {"dp": 4, "sp": 2}
    try:
        with meshkit.build_mesh(sizes, tp=1) as mesh:
            return str(mesh)
    except meshkit.DisagreementError as error:
        return f"DisagreementError: {error}"


def main() -> int:
    """Print the error of all ranks; return 0 if it is the same on every rank."""
    errors = meshkit.spawn(ask, 8, (4,))
    sys.stdout.write(f"{errors[0]}\n")
    return 0 if len({*errors}) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
