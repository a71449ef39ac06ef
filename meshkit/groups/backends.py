"""The backend of the groups over single axes, and torch's options of it.

::

    build_mesh(pp=4, dp=2, backend={"pp": "nccl-lazy"})    groups over pp have this backend
    build_mesh(dp=4, tp=2, backend={"tp": options})        that of the job, with these options

A group is shared by meshes and views if members, order, backend, options and timeout are equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ..errors import SpecError
from ..launch.device import check_backend
from ..launch.torch_groups import describe_options, is_options
from ..layout.group_plan import Axes, GroupPlan, parse_group


class GroupBackend(NamedTuple):
    """The backend of the groups over one set of axes."""

    name: str | None  # None is that of the mesh
    options: object = None  # torch's options of it; None are its defaults

    def __str__(self) -> str:
        return f"{self.name or ''} {describe_options(self.options)}".strip()


Backends = Mapping[Axes, GroupBackend]  # axes, as the caller named them, to their backend


def parse_backends(plan: GroupPlan, backend: object) -> tuple[str | None, dict[Axes, GroupBackend]]:
    """Return the backend of all groups, None for that of the job, and those of single axes."""
    if not isinstance(backend, Mapping):
        return None if backend is None else check_backend(backend), {}
    backends: dict[Axes, GroupBackend] = {}
    names_of: dict[Axes, str] = {}
    for names, value in backend.items():
        axes = parse_group(plan, names)
        choice = _parse_choice(" ".join(axes), value)
        key, text = plan.group_key(axes) or axes, " ".join(axes)
        for others, other in backends.items():
            if key == (plan.group_key(others) or others) and str(other) != str(choice):
                raise SpecError(
                    f"the groups over {names_of[key]} and over {text} are the same, and backend= "
                    "names two backends for them.",
                    fix=f"backend={{{text!r}: ...}} alone.",
                )
        names_of.setdefault(key, text)
        backends[axes] = choice
    return None, backends


def _parse_choice(names: str, value: object) -> GroupBackend:
    """Return a name, options, or a tuple of both, as the backend of some groups."""
    if isinstance(value, str):
        return GroupBackend(check_backend(value))
    if is_options(value):
        return GroupBackend(None, value)
    if isinstance(value, tuple) and len(value) == 2 and is_options(value[1]):
        return GroupBackend(check_backend(value[0]), value[1])
    raise SpecError(
        f"the backend for {names} is {value!r}.",
        fix=f"a name, such as backend={{{names!r}: 'gloo'}}, or torch's options of a backend.",
    )


def backends_by_key(plan: GroupPlan, backends: Backends) -> dict[Axes, GroupBackend]:
    """Return the backends by the key of the group plan; by the axes where each has size 1."""
    by_key: dict[Axes, GroupBackend] = {}
    for axes, choice in backends.items():
        by_key.setdefault(plan.group_key(axes) or axes, choice)
    return by_key


def inherit_backends(
    plan: GroupPlan, backends: Backends, view: GroupPlan, own: Backends
) -> dict[Axes, GroupBackend]:
    """Return the backends of a view: its own, else those of groups that both plans have."""
    by_key, taken = backends_by_key(plan, backends), {*backends_by_key(view, own)}
    by_members = {plan.layout.strides(key): choice for key, choice in by_key.items()}
    inherited: dict[Axes, GroupBackend] = {}
    for axes in filter(None, view.axis_sets):
        key = view.group_key(axes)  # a group of one rank has no steps: there the name decides
        choice = by_members.get(view.layout.strides(key)) if key else by_key.get(axes)
        if choice is not None and (key or axes) not in taken:
            inherited[axes] = choice
    return {**inherited, **own}
