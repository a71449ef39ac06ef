"""A pytest plugin: run a test on several local ranks that form one job.

::

    @pytest.mark.ranks(4)
    def test_the_sum_over_dp():
        mesh = meshkit.build_mesh(dp=2, tp=2)
        ones = torch.ones(1)
        torch.distributed.all_reduce(ones, group=mesh.group("dp"))
        assert ones.item() == 2

The body of the test runs in each of 4 processes, started as by :func:`meshkit.spawn`. The test
passes if every rank returns. pytest finds the plugin where meshkit is installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import ModuleType

import pytest

from ..errors import MeshkitError, format_error

TIMEOUT = 120.0  # seconds of a test, its start included
MARKER = f"ranks(n, timeout={TIMEOUT:g}): run the test on n local ranks that form one job"


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", MARKER)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test with the marker on its ranks, and report the rank that failed first."""
    marker = pyfuncitem.get_closest_marker("ranks")
    if marker is None:
        return None
    num_ranks, timeout = _read_marker(*marker.args, **marker.kwargs)
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    for name, value in arguments.items():
        try:
            ForkingPickler.dumps(value)
        except Exception as error:  # whatever the object raises
            line, cause = f"the fixture {name} cannot be sent to the ranks.", type(error).__name__
            text = format_error(line, f"{cause}: {error}", fix=f"a test without {name}.")
            pytest.fail(text, pytrace=False)
    from ..launch.spawn import spawn  # imports torch

    test = str(pyfuncitem.path), pyfuncitem.function.__module__, pyfuncitem.function.__qualname__
    failure, reasons = "", list[str]()
    try:
        reasons = spawn(run_test, num_ranks, (*test, arguments), timeout=timeout)
    except MeshkitError as error:  # its call is one of this file
        failure = format_error(error.summary, *error.evidence, fix=error.fix_text)
    if failure:
        pytest.fail(failure, pytrace=False)
    if any(reasons):
        pytest.skip(next(filter(None, reasons)))
    return True


def _read_marker(
    n: object = None, timeout: float = TIMEOUT, **unknown: object
) -> tuple[int, float]:
    if unknown or isinstance(n, bool) or not isinstance(n, int) or n < 1:
        pytest.fail("the marker needs a number of ranks: @pytest.mark.ranks(4)", pytrace=False)
    return n, timeout


def run_test(file: str, module: str, name: str, arguments: Mapping[str, object]) -> str:
    """Run a test on this rank. Return the reason of a skip, which pickle cannot rebuild, or ""."""
    value: object = _import_test(Path(file), module)
    for part in name.split("."):
        value = value() if isinstance(value, type) else value  # the method of a class
        value = getattr(value, part)
    try:
        value(**arguments)  # type: ignore[operator]
    except pytest.skip.Exception as skip:
        return skip.msg or "skipped"
    return ""


def _import_test(file: Path, name: str) -> ModuleType:
    """Import a test file by its name, or by its path if pytest imported it so."""
    try:
        module = importlib.import_module(name)
        if Path(str(module.__file__)).samefile(file):
            return module
    except ImportError:
        pass
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} cannot be imported")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
