"""Environment variables read as numbers and text, with errors that name the variable."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NoReturn

from ...core.errors import LaunchError

Env = Mapping[str, str]
COMPLETED = "MESHKIT_COMPLETED"  # the variables that init has added, see completed.py
Names = tuple[str, ...]  # the variables that may hold one field; the first one set is used


def first_set(names: Names, env: Env) -> str | None:
    """Return the first of the names that is set, or None."""
    return next((name for name in names if name in env), None)


def first_value(names: Names, env: Env) -> str | None:
    """Return the value of the first of the names that is set, or None."""
    return env.get(first_set(names, env) or "")


def read_int(
    launcher: str,
    names: Names,
    env: Env,
    *,
    least: int = 0,
    most: int | None = None,
    optional: bool = False,
) -> tuple[int, str] | None:
    """Return a variable as an int from ``least`` to ``most``, and its name."""
    name = first_set(names, env)
    if name is None and optional:
        return None
    text = None if name is None else env[name]
    digits = text is not None and re.fullmatch(r"\s*[0-9]{1,18}\s*", text)
    value = int(text) if text is not None and digits else -1
    if value >= least and (most is None or value <= most):
        return value, name or ""
    span = f"{least} or more" if most is None else f"{least} to {most}"
    fault = f"{' or '.join(names)} is not set" if text is None else f"{name}={text!r} is not {span}"
    example = least if most is None else 29500
    raise_invalid(
        launcher,
        dict.fromkeys(names) if name is None else {name: text},
        fault,
        fix=f"export {name or names[-1]}={example}, or the right number.",
    )


def read_text(launcher: str, names: Names, env: Env) -> tuple[str, str] | None:
    """Return a variable without surrounding blanks, and its name; None if it is not set."""
    name = first_set(names, env)
    if name is None:
        return None
    if not env[name].strip():
        fix = f"export {name}=<value>, or unset {name}."
        raise_invalid(launcher, {name: env[name]}, f"{name} is empty", fix=fix)
    return env[name].strip(), name


def raise_invalid(
    launcher: str, variables: Mapping[str, str | None], fault: str, *, fix: str
) -> NoReturn:
    """Raise the error of a recognised launcher whose variables are invalid."""
    line = f"the launcher {launcher} was recognised, but {fault}."
    raise LaunchError(line, fix=fix, variables=dict(variables))


def raise_conflict(launcher: str, env: Env, first: str, second: str, fault: str) -> NoReturn:
    """Raise the error of two variables that contradict each other."""
    values = {name: env.get(name) for name in (first, second)}
    passed = any(name.startswith("argument ") for name in values)
    raise LaunchError(
        f"{first}={values[first]} {fault}={values[second]}.",
        f"Both were read for the launcher {launcher}.",
        fix=f"{'pass' if passed else 'export'} {first} and {second} so that they agree.",
        variables=values,
    )
