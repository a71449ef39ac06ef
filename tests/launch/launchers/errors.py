"""The error that detect raises for an environment, and its text."""

from __future__ import annotations

import pytest

import meshkit
from meshkit.core.errors import format_error
from tests.launch.launchers.recorded import Env


def detect_error(environ: Env, **arguments: int) -> meshkit.LaunchError:
    """Return the error that detect raises for an environment."""
    with pytest.raises(meshkit.LaunchError) as caught:
        meshkit.detect(environ, **arguments)
    return caught.value


def text_of(error: meshkit.MeshkitError) -> str:
    """Return the text of an error without the call, which quotes a short environment in full."""
    return format_error(error.summary, *error.evidence, fix=error.fix_text)
