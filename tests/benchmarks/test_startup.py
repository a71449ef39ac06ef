import doctest
from collections.abc import Sequence
from dataclasses import replace

import pytest

from benchmarks import ledger, startup
from benchmarks.ledger import (
    Ledger,
    Span,
    joining,
    ledger_table,
    phases,
    share,
    stall,
    stalled,
    whole,
)
from benchmarks.startup import BUILDING, LAZY, Setting, rows_of, setting_rows, turn
from benchmarks.store_calls import Counts

AXES = ("dp", "tp")
STEPS = ["store", "check-in", "world group", "made", "agreement", "groups", "all made"]
BY_TORCH = ["world group", "groups"]
FIRST = [f"first {axis}" for axis in AXES]


def made(rank: int, *spans: tuple[str, float, float], used: float = 0.25) -> Ledger:
    return Ledger(rank, tuple(Span(*span) for span in spans), {}, 10 + rank, 2, used, 2048)


def two(store: float = 1.0) -> list[Ledger]:
    """Rank 0 is there at 2 and rank 1 at 3; the gate opens at 3; ``store`` is rank 1's."""
    first = made(0, ("start", 1, 2), ("gate", 2, 3), ("store", 3, 3.5), ("groups", 4, 5))
    later = made(1, ("start", 1, 3), ("gate", 3, 3), ("store", 3, 3 + store), ("groups", 9, 11))
    return [first, later]


def test_examples_in_docstrings() -> None:
    assert doctest.testmod(ledger).failed == 0


# --- what a ledger says --------------------------------------------------------------------------


def test_a_start_ends_with_the_last_rank_and_begins_when_the_last_process_is_there() -> None:
    assert joining(two()) == 11 - 3
    assert whole(two()) == 11 - 1


def test_each_phase_names_its_slowest_rank_and_the_gate_is_none() -> None:
    found = [(one.name, one.median, one.slowest, one.rank) for one in phases(two())]
    assert found == [
        ("start", 1.5, 2, 1),
        ("store", 0.75, 1.0, 1),
        ("groups", 1.5, 2, 1),
        ("rest", 2.75, 5.0, 1),
    ]


def test_the_phases_and_the_rest_are_the_whole_time_of_a_rank() -> None:
    for one in two():
        of_phases = sum(one.seconds(name) for name in ("store", "groups"))
        assert of_phases + one.rest == one.finished - one.passed


def test_a_share_is_that_of_the_middle_rank() -> None:
    # 0.5 of 1.5 and 1 of 3: a third each
    assert share(two(), "store", ("store", "groups")) == pytest.approx(100 / 3)


def test_only_a_wait_of_the_resolver_is_a_stall() -> None:
    told = "store: rank 1 waited 5.2 s, and 0.4 s in all without reverse look-ups"
    assert stall(two(5.2), 0.4) == told
    assert stall(two(3.9), 0.4) == "none"  # shorter than the resolver waits
    assert stall(two(5.2), 4.1) == "none"  # as slow without look-ups: a busy machine
    found = stalled(two(5.2), 0.4)
    assert found is not None
    assert (found.name, round(found.slowest, 1), found.rank) == ("store", 5.2, 1)


def test_a_wait_of_the_resolver_shows_beside_a_start_that_took_a_moment_itself() -> None:
    """In 5.25 s all in all: 5 s of them waited, where the start without look-ups took 0.3 s."""
    spans = ("start", 0, 1), ("gate", 1, 1), ("store", 1, 6.02), ("groups", 6.02, 6.25)
    found = stalled([made(0, *spans)], 0.3)
    assert found is not None
    assert found.slowest == pytest.approx(5.02)


def test_the_table_to_the_letter() -> None:
    assert ledger_table(two()).splitlines() == [
        "  phase         median s  slowest s  rank",
        "  start           1.5000     2.0000  1",
        "  store           0.7500     1.0000  1",
        "  groups          1.5000     2.0000  1",
        "  rest            2.7500     5.0000  1",
        "  a rank holds at most 11 descriptors, 2 threads, 2.0 MiB more than before; "
        "processor time of all 0.50 s",
    ]


# --- real ranks ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sides() -> tuple[list[Ledger], list[Ledger]]:
    ours, theirs = turn((Setting(2),))
    return ours, theirs


def names(found: Ledger) -> list[str]:
    return [span.phase for span in found.spans]


def test_both_sides_did_the_same_work(sides: Sequence[list[Ledger]]) -> None:
    for ledgers in sides:
        assert [one.rank for one in ledgers] == [0, 1]
        assert [one.sums for one in ledgers] == [{"dp": 1.0, "tp": 2.0}] * 2


def test_the_phases_come_in_their_order_and_none_overlaps(sides: Sequence[list[Ledger]]) -> None:
    ours, theirs = sides
    for one in ours:
        assert names(one) == ["start", "gate", *STEPS, *FIRST]
    for one in theirs:
        assert names(one) == ["start", "gate", *BY_TORCH, *FIRST]
    for one in (*ours, *theirs):
        times = [time for span in one.spans for time in (span.began, span.ended)]
        assert times == sorted(times)
        assert one.descriptors > 2
        assert one.threads > 1
        assert one.cpu > 0


def test_no_rank_passes_the_gate_before_all_are_there(sides: Sequence[list[Ledger]]) -> None:
    for ledgers in sides:
        last = max(one.spans[0].ended for one in ledgers)
        assert all(one.passed >= last for one in ledgers)


def test_rows_have_goals_only_where_the_issue_sets_them(
    sides: tuple[list[Ledger], list[Ledger]],
) -> None:
    ours, theirs = ([side] * 2 for side in sides)
    goals = {
        setting: [str(row.goal) for row in setting_rows(setting, ours, theirs) if row.goal]
        for setting in (Setting(128), Setting(128, lazy=True), Setting(128, "tcp"), Setting(8))
    }
    assert [*goals.values()] == [["ratio <= 0.5", "ours <= 10"], [], [], []]
    rows = setting_rows(Setting(8), ours, theirs)
    assert [row.unit for row in rows] == ["s", "s", "%", "descriptors", "threads", "kib", "s"]
    assert rows[2].ours == share(sides[0], "agreement", BUILDING)
    assert [row.what for row in rows if row.phases] == ["start-up, file store"]
    assert [one.name for one in rows[0].phases] == ["start", *STEPS, *FIRST, "rest"]
    assert [one.name for one in rows[0].their_phases] == ["start", *BY_TORCH, *FIRST, "rest"]


def test_the_row_of_a_stall_tells_the_worst_job_of_both_sides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[object] = []
    quick = [made(0, ("start", 0, 1), ("gate", 1, 1), ("store", 1, 2))]

    def job(*given: object) -> list[Ledger]:
        asked.append(given)
        return quick

    monkeypatch.setattr(startup, "job", job)
    setting = Setting(8, "tcp")
    row = startup.stall_row(setting, [quick, two(5.2), two(5.1), quick], [quick] * 4)
    assert (row.what, row.scale) == ("start-up, tcp store, longest wait for a name", 8)
    assert (row.ours, row.theirs, row.met) == (pytest.approx(5.2), 0, False)
    assert asked == [(side, setting, {"RES_OPTIONS": "attempts:0"}) for side in startup.SIDES]


def test_all_settings_are_run_the_largest_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[tuple[Setting, ...], int] = {}

    def rows_of(settings: tuple[Setting, ...], repeats: int) -> list[tuple[str, Setting]]:
        asked[settings] = repeats
        return [("rows", setting) for setting in settings]

    def jobs_of(settings: tuple[Setting, ...], repeats: int) -> list[str]:
        asked[settings] = repeats
        return ["ours", "theirs"]

    monkeypatch.setattr(startup, "rows_of", rows_of)
    monkeypatch.setattr(startup, "jobs_of", jobs_of)
    monkeypatch.setattr(startup, "setting_rows", lambda *given: [("rows", *given)])
    monkeypatch.setattr(startup, "stall_row", lambda *given: ("stall", *given))
    monkeypatch.setattr(startup, "importing", lambda module: 1.0 if "meshkit" in module else 2.0)
    first, *rest = startup.run(quick=False)
    assert (first.ours, first.theirs) == (1, 2)
    often = {8: 3, 32: 3, 64: 2, 128: 3, 256: 1}
    files = {(Setting(n), Setting(n, lazy=True)): times for n, times in often.items()}
    tcp = [Setting(n, "tcp") for n in (8, 32)]
    assert asked == files | {(setting,): 3 for setting in tcp}
    named = [("rows", setting) for settings in files for setting in settings]
    # the stall is looked for in the jobs of the rows: it comes in some turns only
    assert rest == named + [
        (kind, setting, "ours", "theirs") for setting in tcp for kind in ("rows", "stall")
    ]


def test_each_setting_stands_beside_the_same_jobs_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Setting(8), Setting(8, lazy=True)
    jobs = {0: ["eager 0", "lazy 0", "torch 0"], 1: ["eager 1", "lazy 1", "torch 1"]}
    monkeypatch.setattr(startup, "turn", lambda given, repeat: jobs[repeat])
    monkeypatch.setattr(startup, "setting_rows", lambda *given: [given])
    torch = "torch 0", "torch 1"
    assert rows_of(settings, 2) == [
        (settings[0], ("eager 0", "eager 1"), torch),
        (settings[1], ("lazy 0", "lazy 1"), torch),
    ]


def test_a_start_with_another_sum_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    right, wrong = {"dp": 1.0, "tp": 2.0}, {"dp": 1.0, "tp": 1.0}
    found = [replace(one, sums=right) for one in two()]
    monkeypatch.setattr(startup.meshkit, "spawn", lambda *_, **__: found)
    assert startup.job("torch", Setting(2), {}) == found
    found[1] = replace(found[1], sums=wrong)
    with pytest.raises(RuntimeError, match=r"^torch: ones over .* sum up to .* on rank 1$"):
        startup.job("torch", Setting(2), {})


def test_who_begins_changes_and_torch_is_never_lazy(monkeypatch: pytest.MonkeyPatch) -> None:
    began: list[tuple[str, Setting, Counts]] = []

    def job(*given: object) -> object:
        began.append(given)
        return given

    monkeypatch.setattr(startup, "job", job)
    eager, lazy = Setting(8), Setting(8, lazy=True)
    found = [turn((eager, lazy), repeat) for repeat in (0, 1)]
    sides = [("meshkit", eager, {}), ("meshkit", lazy, LAZY), ("torch", eager, {})]
    assert began == sides + sides[::-1]
    assert found == [sides, sides]


def test_it_prints_a_ledger_a_side(capsys: pytest.CaptureFixture[str]) -> None:
    assert startup.main(["-n", "2"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("2 ranks, file store: ")
    assert [said.count(f"\n {side}: ") for side in ("meshkit", "torch")] == [1, 1]
    assert all(f"\n  {phase} " in said for phase in (*STEPS, *FIRST))
