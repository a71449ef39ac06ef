"""The machine and the versions that figures were taken with."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from meshkit.core.version import VERSION

PACKAGES = ("torch", "numpy", "einops", "megatron-core", "deepspeed")


@dataclass(frozen=True)
class Machine:
    """What figures depend on.

    Attributes:
        cores: of the machine.
        processor: its name, as the system tells it.
        system: name and release of the operating system.
        python: the version of Python.
        packages: name to version, meshkit's as in this checkout; ``"not installed"`` for those
            that are not there.
    """

    cores: int
    processor: str
    system: str
    python: str
    packages: dict[str, str]

    @classmethod
    def here(cls) -> Machine:
        """This one."""
        packages = {"meshkit": VERSION} | {name: version(name) for name in PACKAGES}
        system = f"{platform.system()} {platform.release()}"
        cores = os.cpu_count() or 1
        return cls(cores, processor(), system, platform.python_version(), packages)

    def __str__(self) -> str:
        packages = ", ".join(f"{name} {version}" for name, version in self.packages.items())
        on = f"{self.cores} cores of {self.processor}, {self.system}, Python {self.python}"
        return f"{on}\n{packages}"


def version(package: str) -> str:
    """The installed version of a package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def processor(table: Path = Path("/proc/cpuinfo")) -> str:
    """The name of the processor; the architecture where the system does not tell more."""
    if table.is_file():
        named = [line for line in table.read_text().splitlines() if line.startswith("model name")]
        if named:
            return named[0].partition(":")[2].strip()
    return platform.machine()
