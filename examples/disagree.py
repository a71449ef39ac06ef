"""Start eight ranks, one with another config, and print the error that every rank raises.

    python examples/disagree.py

In this case torch's ``init_device_mesh`` hangs or computes a wrong sum, as its documentation says.
"""

from __future__ import annotations

import sys

import meshkit


def try_to_build(odd: int) -> str:
    """Build a mesh with another config on one rank; return the mesh or the error as text."""
    sizes = {"dp": 2, "sp": 4} if meshkit.detect().rank == odd else {"dp": 4, "sp": 2}
    try:
        with meshkit.build_mesh({**sizes, "tp": 1}) as mesh:
            return str(mesh)
    except meshkit.DisagreementError as error:
        return f"DisagreementError: {error}"


def main() -> int:
    """Print the error; return 0 if it is equal on all ranks."""
    texts = meshkit.spawn(try_to_build, 8, (4,))
    sys.stdout.write(f"{texts[0]}\n")
    return 0 if len({*texts}) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
