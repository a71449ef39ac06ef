"""Commands that start local ranks share their errors and their choice of a device."""

from __future__ import annotations

import pytest

from meshkit.cli import local_ranks
from meshkit.core.errors import LaunchError, RankTimeoutError, SpawnError


def failing(errors: dict[int, BaseException], first: int) -> SpawnError:
    error = SpawnError("long, with a traceback", errors=errors)
    error.__cause__ = errors[first]
    return error


def test_the_words_of_the_rank_that_failed_first() -> None:
    died = RuntimeError("the process ended by itself, with signal SIGKILL")
    late = RankTimeoutError("2 of 4 ranks did not arrive.", fix="look.", missing_ranks=(1, 3))
    results = local_ranks.describe_failure(4, failing({0: late, 1: died, 2: late}, 1), "cuda")
    assert str(results) == (
        "rank 1 of 4 failed first; also failed: 0, 2.\n"
        "  RuntimeError: the process ended by itself, with signal SIGKILL\n"
        "  Fix: run meshkit doctor; or --device cpu, which needs fewer resources."
    )
    assert results.errors == {0: late, 1: died, 2: late}
    fixes = {
        "cpu": "",
        "cuda:1": "; or --sizes 1K or --device cpu, which needs fewer resources",
    }
    for device, less in fixes.items():
        text = str(
            local_ranks.describe_failure(
                4, failing({1: died}, 1), device, "--sizes 1K" if less else ""
            )
        )
        assert text.splitlines()[-1] == f"  Fix: run meshkit doctor{less}."
    assert str(local_ranks.describe_failure(4, failing({0: late}, 0), None)) == (
        "rank 0 of 4 failed first.\n  RankTimeoutError: 2 of 4 ranks did not arrive.\n  Fix: look."
    )


def test_an_error_of_torch_is_printed() -> None:
    with (
        pytest.raises(LaunchError) as reported,
        local_ranks.torch_errors("the all-reduce of rank 1 of 4"),
    ):
        raise RuntimeError("Connection closed by peer\nException raised from x")
    assert str(reported.value) == (
        "the all-reduce of rank 1 of 4 failed.\n"
        "  Connection closed by peer\n"
        "  Fix: run meshkit doctor on the machines of the job."
    )
    late = RankTimeoutError("late")
    with pytest.raises(RankTimeoutError) as kept, local_ranks.torch_errors("x"):
        raise late
    assert kept.value is late


@pytest.mark.parametrize(
    ("arguments", "kind", "seen", "taken"),
    [
        (None, None, 0, None),
        (None, "cuda", 4, None),
        (None, "cuda", 3, "cpu"),
        ("cuda", "cuda", 3, "cuda"),
    ],
)
def test_local_ranks_share_the_cpu_where_there_are_too_few_devices(
    monkeypatch: pytest.MonkeyPatch,
    arguments: str | None,
    kind: str | None,
    seen: int,
    taken: str | None,
) -> None:
    monkeypatch.setattr("meshkit.launch.device.device.accelerator", lambda: kind)
    monkeypatch.setattr("meshkit.launch.device.device.visible_devices", lambda _: seen)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert local_ranks.choose_shared_device(arguments) == taken
    assert local_ranks.uses_cpu(arguments, 4) is (taken == "cpu" or kind is None)
    assert local_ranks.uses_cpu("cpu", 1)
