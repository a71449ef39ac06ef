"""Law 9: the batch formula holds exactly, and every sample is owned once in a step."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from meshkit import BatchPlan, Layout
from meshkit.data.batch import BATCH_FIELDS, num_data_coordinates, resolve_data_axes
from meshkit.layout.position import group_rank
from meshkit.testing import batch_plans
from tests.laws.derivations import law


@law
@given(batch_plans())
def test_law_9_the_global_batch_is_the_exact_product(plan: BatchPlan) -> None:
    product = plan.micro_batch * plan.accumulation_steps * plan.dp
    assert plan.global_batch == product
    for omitted in [*BATCH_FIELDS, None]:  # three sizes determine the fourth
        known = {name: getattr(plan, name) for name in BATCH_FIELDS if name != omitted}
        assert BatchPlan.solve(**known) == plan


NAMES = ["pp", "dp", "ep", "cp", "sp", "tp", "fsdp", "expert", "model", "seq"]
SAMPLES_DIFFER = {"dp", "ep", "fsdp", "expert"}  # along these axes; all others share them


@law
@given(
    st.dictionaries(st.sampled_from(NAMES), st.integers(1, 3), min_size=1, max_size=4),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(0, 3),
)
def test_law_9_a_sample_is_read_by_the_ranks_that_differ_along_model_axes_only(
    sizes: dict[str, int], micro: int, steps: int, step: int
) -> None:
    """Compare with an array of samples that is laid over the grid of ranks."""
    layout = Layout(**sizes)
    axes = resolve_data_axes(None, layout.sizes)
    plan = BatchPlan.solve(
        dp=num_data_coordinates(layout.sizes, axes), micro_batch=micro, accumulation_steps=steps
    )
    shape = [size if axis in SAMPLES_DIFFER else 1 for axis, size in sizes.items()]
    assert plan.global_batch == micro * steps * int(np.prod(shape))
    begin = step * plan.global_batch
    samples = np.arange(begin, begin + plan.global_batch).reshape(steps, *shape, micro)
    owners: dict[int, list[int]] = {}
    for rank in range(layout.num_ranks):
        index = tuple(np.argwhere(layout.grid == rank)[0] % shape)  # 0 along the model axes
        read = plan.samples(step, group_rank(layout, rank, axes) if axes else 0)
        np.testing.assert_array_equal(read, samples[(slice(None), *index)])
        for sample in read.ravel().tolist():
            owners.setdefault(sample, []).append(rank)
    assert sorted(owners) == samples.ravel().tolist()
    model = [axis for axis in sizes if axis not in SAMPLES_DIFFER]
    groups = layout.groups(*model).tolist() if model else [[r] for r in range(layout.num_ranks)]
    assert all(ranks in groups for ranks in owners.values())


@law
@given(batch_plans(uneven=True), st.integers(0, 5), st.integers(1, 9), st.integers(0, 50))
def test_law_9_holds_for_uneven_plans_and_after_a_resize(
    plan: BatchPlan, step: int, dp: int, first: int
) -> None:
    """The order of samples is by micro step, then by the data coordinates that run it."""
    for each in (plan, plan.resize(dp)):
        assert sum(each.num_micro_batches(d) for d in range(each.dp)) * each.micro_batch == (
            plan.global_batch
        )
        owned = [each.samples(step, d, first=first) for d in range(each.dp)]
        rows = [
            row for a in range(each.accumulation_steps) for part in owned for row in part[a : a + 1]
        ]
        assert {(row.dtype, row.shape) for row in rows} == {
            (np.dtype(np.int64), (plan.micro_batch,))
        }
        begin = first + step * plan.global_batch
        assert np.concatenate(rows).tolist() == list(range(begin, begin + plan.global_batch))
