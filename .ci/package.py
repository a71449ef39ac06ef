"""Check the files and the metadata of a wheel and an sdist: python .ci/package.py TREE DIST.

TREE has the files under version control, DIST one wheel and one sdist that were built from them.
"""

from __future__ import annotations

import re
import sys
import tarfile
import zipfile
from email import message_from_string
from pathlib import Path


def main(tree: Path, dist: Path) -> int:
    """Print what is wrong, and return the exit code."""
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    source = (tree / "meshkit" / "errors.py").read_text()
    version = re.findall(r'^VERSION = "(.+?)"', source, re.MULTILINE)[0]
    info = f"meshkit-{version}.dist-info"
    files = {str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()}
    package = {name for name in files if name.startswith("meshkit/")}

    with zipfile.ZipFile(wheel) as archive:
        in_wheel = {*archive.namelist()}
        metadata = message_from_string(archive.read(f"{info}/METADATA").decode())
    with tarfile.open(sdist) as archive:
        in_sdist = {m.name.partition("/")[2] for m in archive.getmembers() if m.isfile()}
    made = {f"{info}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt")}
    required = metadata.get_all("Requires-Dist", [])
    expected = {
        "files of the wheel": (in_wheel, package | made | {f"{info}/licenses/LICENSE"}),
        "files of the sdist": (in_sdist, files | {"PKG-INFO"}),
        "version": ({metadata["Version"]}, {version}),
        "dependencies": (
            {requirement for requirement in required if "extra ==" not in requirement},
            {"torch>=2.11", "numpy", "einops"},
        ),
        "licence": ({metadata["License-Expression"]}, {"BSD-3-Clause"}),
    }
    needed = {"meshkit/py.typed", "LICENSE", "CHANGELOG.md", "tests/conftest.py"}
    failures = [f"not under version control: {name}" for name in needed - files]
    if "Typing :: Typed" not in metadata.get_all("Classifier", []):
        failures.append("no classifier Typing :: Typed")
    if metadata.get_payload() != (tree / "README.md").read_text():
        failures.append("the description is not README.md")
    for name, (found, right) in expected.items():
        if found != right:
            failures.append(f"{name}: {sorted(found - right)}, not {sorted(right - found)}")
    print("\n".join(failures) or f"meshkit {version}: {len(files)} files, {len(package)} installed")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
