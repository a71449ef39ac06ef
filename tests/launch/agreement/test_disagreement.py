"""The report on the failure of another rank."""

from __future__ import annotations

from meshkit.core.call import Call
from meshkit.core.errors import CALL, SpecError
from meshkit.launch.agreement.disagreement import failure_report
from meshkit.launch.store.check_in import ProcessIdentity

PROCESS = ProcessIdentity.current()


def needs_3_ranks() -> SpecError:
    return SpecError(f"{CALL} needs 3 ranks.", "evidence", fix="start 3, or leave out dp.")


def test_the_report_quotes_the_call_of_the_failed_rank() -> None:
    call = Call("build_mesh", kwargs={"dp": 3})
    report = failure_report("ranks disagree.", 2, needs_3_ranks().quote(call))
    assert str(report) == (
        "ranks disagree.\n"
        f"  rank 2 ({PROCESS}) gave up: SpecError: build_mesh(dp=3) needs 3 ranks.\n"
        "  evidence\n"
        "  Fix: start 3, or leave out dp."
    )
    assert report.requests == {2: "SpecError: build_mesh(dp=3) needs 3 ranks."}


def test_a_report_without_a_call_is_a_sentence() -> None:
    report = failure_report("ranks disagree.", 2, needs_3_ranks())
    assert report.requests == {2: "SpecError: this call needs 3 ranks."}


def test_the_call_of_the_failed_rank_stays_when_another_rank_raises() -> None:
    error = SpecError(f"{CALL} needs 3 ranks.").quote(Call("build_mesh", kwargs={"dp": 3}))
    report = failure_report("ranks disagree.", 2, error)
    report.quote(Call("build_mesh", kwargs={"dp": 4}))
    assert str(report).splitlines()[0] == "ranks disagree."
    assert "SpecError: build_mesh(dp=3) needs 3 ranks." in str(report)


def test_another_error_is_quoted_line_by_line() -> None:
    report = failure_report("ranks disagree.", 1, RuntimeError("no\n  connection"))
    assert report.evidence == (f"rank 1 ({PROCESS}) gave up: RuntimeError: no", "connection")
    assert report.fix_text == "look at the log of rank 1 first."
    assert "gave up: ValueError: " in str(failure_report("x", 1, ValueError()))
