"""Run code as ``python -W error -c`` does, in a process that has imported torch already.

A new interpreter takes about two seconds of processor time to import torch. A process of this file
is forked from the forkserver of the tests. It has an empty ``__main__``, and its own environment,
argv and streams. Tests of an import, of a launcher, or of what Python itself does at its start need
a real interpreter.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import tempfile
import types
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

from meshkit.launch.worker import context_for, start_process

TORCHRUN = "from torch.distributed.run import main\nmain()"
MESHKIT = "import sys\nfrom meshkit.__main__ import main\nsys.exit(main())"


def run_python(
    code: str,
    *argv: str,
    environ: Mapping[str, str] | None = None,
    cwd: Path | str = ".",
    timeout: float = 120,
) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own, and return its exit code and what it printed.

    Args:
        code: the program, which has no file.
        argv: the arguments of the program, as ``sys.argv[1:]``.
        environ: all variables of the process; those of this process if None.
        cwd: the working directory of the process.
        timeout: seconds after which the process is killed and the test fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        variables = dict(os.environ if environ is None else environ)
        arguments = code, argv, variables, str(Path(cwd).resolve()), str(out), str(err)
        process = context_for(_run).Process(target=_run, args=arguments)
        start_process(process)
        try:
            process.join(timeout)
            assert process.exitcode is not None, f"still running after {timeout} s: {code}"
        finally:
            process.kill()
            process.join()
        return subprocess.CompletedProcess(
            ["-c", *argv], process.exitcode, out.read_text(), err.read_text()
        )


def _run(
    code: str, argv: Sequence[str], environ: dict[str, str], cwd: str, out: str, err: str
) -> None:
    """Make this process look like a new interpreter, and run the code in it."""
    _redirect(0, os.devnull, os.O_RDONLY)
    _redirect(1, out, os.O_WRONLY | os.O_CREAT)
    _redirect(2, err, os.O_WRONLY | os.O_CREAT)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(cwd)
    sys.argv = ["-c", *argv]
    sys.path[:0] = ["", *filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    warnings.simplefilter("error")
    exit_code: object = 0
    try:
        exec(compile(code, "<string>", "exec"), vars(main))
    except SystemExit as exit:
        exit_code = exit.code
    except BaseException as error:
        frames = error.__traceback__ and error.__traceback__.tb_next  # without this function
        sys.excepthook(type(error), error, frames)
        exit_code = 1
    atexit._run_exitfuncs()
    raise SystemExit(exit_code)


def _redirect(descriptor: int, path: str, flags: int) -> None:
    """Let a descriptor write to a file, or read from it."""
    opened = os.open(path, flags, 0o600)
    os.dup2(opened, descriptor)
    os.close(opened)
