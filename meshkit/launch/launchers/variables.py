"""Variables of the environment as numbers and words, or a refusal that names them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NoReturn

from ...core.errors import LaunchError, told

Env = Mapping[str, str]
Names = tuple[str, ...]  # names of one field: the first that is set answers


def present(names: Names, env: Env) -> str | None:
    """The first of the names that is set; None where none is."""
    return next((name for name in names if name in env), None)


def number(
    launcher: str,
    names: Names,
    env: Env,
    *,
    least: int = 0,
    most: int | None = None,
    optional: bool = False,
    hint: str = "",
) -> int | None:
    """A variable as an int from ``least`` to ``most``; None where it may be, and is, not set.

    Args:
        launcher: the launcher to name in an error.
        names: the variables that may hold it.
        env: the environment.
        least: the smallest value that can be.
        most: the largest; None for no limit.
        optional: whether it may be missing.
        hint: a line of evidence for the error.

    Raises:
        LaunchError: where it is missing, empty, no number or out of range.
    """
    name = present(names, env)
    if name is None and optional:
        return None
    text = None if name is None else env[name]
    digits = text is not None and re.fullmatch(r"\s*[0-9]{1,18}\s*", text)
    found = int(text) if text is not None and digits else -1
    if found >= least and (most is None or found <= most):
        return found
    span = f"{least} or more" if most is None else f"{least} to {most}"
    fault = f"{' or '.join(names)} is not set" if text is None else f"{name}={text!r} is not {span}"
    example = least if most is None else 29500
    refuse(
        launcher,
        dict.fromkeys(names) if name is None else {name: text},
        fault,
        *([hint] * bool(hint)),
        fix=f"export {name or names[-1]}={example}, or the number that belongs there.",
    )


def word(launcher: str, names: Names, env: Env) -> str | None:
    """A variable as it stands, less blanks around it; None where it is not set.

    Raises:
        LaunchError: where it is empty.
    """
    name = present(names, env)
    if name is None:
        return None
    if not env[name].strip():
        fix = f"export {name}=<value>, or unset {name}."
        refuse(launcher, {name: env[name]}, f"{name} is empty", fix=fix)
    return env[name].strip()


def refuse(
    launcher: str, variables: Mapping[str, str | None], fault: str, *evidence: str, fix: str
) -> NoReturn:
    """Raise the error of a recognised launcher whose variables cannot be right.

    Raises:
        LaunchError: always.
    """
    line = f"the launcher {launcher} was recognised, but {fault}."
    raise LaunchError(told(line, *evidence, fix=fix), variables=dict(variables))


def disagree(launcher: str, env: Env, first: str, second: str, fault: str) -> NoReturn:
    """Raise the error of two variables that cannot both be right.

    Raises:
        LaunchError: always, with both and their values.
    """
    values = {name: env.get(name) for name in (first, second)}
    passed = any(name.startswith("argument ") for name in values)
    text = told(
        f"{first}={values[first]} {fault}={values[second]}.",
        f"Both were read for the launcher {launcher}.",
        fix=f"{'pass' if passed else 'export'} {first} and {second} so that they agree.",
    )
    raise LaunchError(text, variables=values)
