"""Groups of gradients, samples of ranks along ep, and axes of unknown role, on real ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import meshkit
from meshkit import Layout
from tests.live.data.test_batch import train_one_step
from tests.live.membership import members_of
from tests.live.resources import live_groups

EXPERTS = Layout(dp=2, ep=2, sp=2)
STEPS, MICRO = 2, 3
GLOBAL = STEPS * MICRO * 4  # dp x ep


def gradient_members(mesh: meshkit.Mesh) -> list[list[int]]:
    """Return the members of both gradient groups. Collective."""
    return [members_of(mesh.gradient_group(experts=experts)) for experts in (False, True)]


def read_with_experts() -> dict[str, Any]:
    """Return the groups and the samples of this rank on a mesh with ep and sp, and views of it."""
    with meshkit.build_mesh(dp=2, ep=2, sp=2) as mesh, mesh.view(dp=2, ep=2, tp=2) as view:
        count = live_groups()
        same = [
            mesh.gradient_group() is mesh.group("dp", "ep", "sp"),
            mesh.gradient_group() is mesh.group(),
            mesh.gradient_group(experts=True) is mesh.group("dp", "sp"),
            view.gradient_group(experts=True) is view.group("dp"),
            live_groups() == count,  # a getter creates nothing
        ]
        plan = mesh.batch(accumulation_steps=STEPS, micro_batch=MICRO)
        loader = DataLoader(range(2 * GLOBAL), batch_sampler=mesh.sampler(2 * GLOBAL, plan))
        mesh.check_batch(plan.samples(0).tolist())
        shared = mesh.batch(accumulation_steps=STEPS, micro_batch=MICRO, data="dp")
        ddp = [
            train_one_step(m, m.batch(global_batch=8, micro_batch=1), average_with_ddp(m), 8)[0]
            for m in (mesh, view)
        ]
        return {
            "same": same,
            "members": gradient_members(mesh),
            "members of the view": gradient_members(view),
            "sizes": (plan.global_batch, plan.dp, plan.axes, shared.global_batch),
            "samples": plan.samples(1).tolist(),
            "loaded": torch.cat([*loader]).tolist(),
            "shared": shared.samples(0).tolist(),
            "weight": float(mesh.token_weights([mesh.rank + 1])),
            "gap": max(ddp),
        }


def average_with_ddp(mesh: meshkit.Mesh) -> Callable[[Any], Any]:
    """Return the wrapper of a model that the README shows."""
    return lambda model: DistributedDataParallel(model, process_group=mesh.gradient_group())


def refuse_to_guess() -> dict[str, Any]:
    """Return the errors on a mesh with an axis of unknown role, and the results of their fixes."""
    errors: dict[str, str] = {}
    plain = meshkit.BatchPlan.solve(dp=4, global_batch=16, micro_batch=2)
    with meshkit.build_mesh({"dp": 2, "rows": 2, "tp": 2}, order="dp rows tp") as mesh:
        asks: dict[str, Callable[[], object]] = {
            "batch": lambda: mesh.batch(global_batch=16, micro_batch=2),
            "check_batch": lambda: mesh.check_batch([mesh.rank]),
            "sampler": lambda: mesh.sampler(32, plain),
            "token_weights": lambda: mesh.token_weights([1]),
            "gradient_group": lambda: mesh.gradient_group(),
        }
        for name, ask in asks.items():
            with pytest.raises(meshkit.SpecError) as caught:
                ask()
            errors[name] = caught.value.fix_text
        data: dict[str, Any] = eval(f"dict({errors['batch'].partition(', or ')[0]})")
        typed = mesh.batch(global_batch=16, micro_batch=2, **data)
        mesh.check_batch([mesh.rank // 2], **data)
        sampler = mesh.sampler(32, typed)
        group = eval(errors["gradient_group"].partition(", or ")[0], {"mesh": mesh})
        typed_group = members_of(group)
    return {
        "errors": errors,
        "samples": typed.samples(0).tolist(),
        "sampled": next(iter(sampler)),
        "group": typed_group,
    }


def read_with_other_names() -> dict[str, Any]:
    """Return samples and groups on meshes with the axis names of other libraries."""
    report = {}
    for order in ("data model", "dp_replicate dp_shard", "fsdp seq tensor"):
        names = order.split()
        sizes = dict(zip(names, (4, 2) if len(names) == 2 else (2, 2, 2), strict=True))
        with meshkit.build_mesh(sizes, order=order) as mesh:
            plan = mesh.batch(global_batch=16, micro_batch=2)
            plain = meshkit.BatchPlan.solve(dp=plan.dp, global_batch=16, micro_batch=2)
            own = next(iter(mesh.sampler(16, plain)))
            report[order] = plan.dp, plan.data_index, own, gradient_members(mesh)[0]
    return report


def read_both_ways() -> list[Any]:
    """Return the meshes of both readings of ep inside dp, after its refusal."""
    with pytest.raises(meshkit.SpecError) as caught:
        meshkit.build_mesh(dp=8, ep=4)
    assert caught.value.fix_text.split(", or ") == ["dp=2", "start 32 ranks."]
    with meshkit.build_mesh(dp=2, ep=4) as mesh:
        report: list[Any] = [mesh.layout.sizes]
    with meshkit.build_mesh(dp=8) as dense, dense.view(dp=2, ep=4) as view:
        report += [dense.layout.sizes, view.layout.sizes]
        report += [view.gradient_group() is dense.gradient_group(), gradient_members(view)]
    return report


def ask_all() -> dict[str, Any]:
    """Run the jobs of eight ranks."""
    return {
        "experts": read_with_experts(),
        "unknown": refuse_to_guess(),
        "names": read_with_other_names(),
        "both": read_both_ways(),
    }


@pytest.fixture(scope="module")
def eight() -> list[dict[str, Any]]:
    """Return the results of eight ranks."""
    return meshkit.spawn(ask_all, 8, timeout=120)


def test_ranks_along_ep_read_different_samples(eight: list[dict[str, Any]]) -> None:
    """Derive the samples of a rank from an array (steps, micro steps, dp, ep, items)."""
    order = np.arange(2 * GLOBAL).reshape(2, STEPS, 2, 2, MICRO)
    for rank, results in enumerate(eight):
        experts, (dp, ep, _) = results["experts"], np.unravel_index(rank, (2, 2, 2))
        assert experts["sizes"] == (GLOBAL, 4, ("dp", "ep"), GLOBAL // 2)
        assert experts["samples"] == order[1, :, dp, ep].tolist()
        assert experts["loaded"] == order[:, :, dp, ep].ravel().tolist()
        by_dp = np.arange(GLOBAL // 2).reshape(STEPS, 2, MICRO)
        assert experts["shared"] == by_dp[:, dp].tolist()
        assert experts["weight"] == pytest.approx(8 * (rank + 1) / 36)  # tokens of all 8 ranks


def test_gradient_groups_hold_the_ranks_that_see_other_tokens(eight: list[dict[str, Any]]) -> None:
    for rank, results in enumerate(eight):
        experts, ep = results["experts"], rank // 2 % 2
        assert experts["same"] == [True] * 5
        same_ep = [other for other in range(8) if other // 2 % 2 == ep]
        assert experts["members"] == [[*range(8)], same_ep]
        same_tp = [other for other in range(8) if other % 2 == rank % 2]
        assert experts["members of the view"] == [same_tp, [*range(rank % 4, 8, 4)]]


def test_ddp_over_the_gradient_group_averages_over_the_global_batch(
    eight: list[dict[str, Any]],
) -> None:
    assert max(results["experts"]["gap"] for results in eight) < 1e-14


def test_an_axis_of_unknown_role_is_refused_with_calls_that_work(
    eight: list[dict[str, Any]],
) -> None:
    for rank, results in enumerate(eight):
        unknown, data = results["unknown"], rank // 2
        for ask in ("batch", "check_batch"):
            assert unknown["errors"][ask] == "data='dp rows', or data='dp'."
        assert "data='dp rows'" in unknown["errors"]["sampler"]
        assert "'dp', 'rows'" in unknown["errors"]["token_weights"]
        assert unknown["samples"] == [[8 * a + 2 * data, 8 * a + 2 * data + 1] for a in (0, 1)]
        assert unknown["sampled"] == unknown["samples"][0]
        assert unknown["group"] == [rank % 4, rank % 4 + 4]


def test_names_of_other_libraries_need_no_word_more(eight: list[dict[str, Any]]) -> None:
    for rank, results in enumerate(eight):
        same_last = [*range(rank % 2, 8, 2)]
        half, last = rank // 4, rank // 2
        assert results["names"] == {
            "data model": (4, last, [2 * last, 2 * last + 1], same_last),
            "dp_replicate dp_shard": (8, rank, [2 * rank, 2 * rank + 1], [*range(8)]),
            "fsdp seq tensor": (2, half, [2 * half, 2 * half + 1], same_last),
        }


def test_ep_inside_dp_is_refused_with_both_readings(eight: list[dict[str, Any]]) -> None:
    for rank, results in enumerate(eight):
        *meshes, shared, members = results["both"]
        assert meshes == [{"dp": 2, "ep": 4}, {"dp": 8}, {"dp": 2, "ep": 4}]
        assert shared
        assert members == [[*range(8)], [rank % 4, rank % 4 + 4]]
