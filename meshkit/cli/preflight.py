"""``meshkit preflight``: doctor, bench and rehearse as one command with one page and one status."""

from __future__ import annotations

import socket
from argparse import REMAINDER, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Mapping
from dataclasses import replace

from ..bench import results
from ..errors import MeshkitError, SpecError
from ..launch.detect import detect, environment
from ..layout.layout import Layout
from ..text import wrap_lines
from . import doctor, options
from .bench import BENCH, BenchPlan, measure, plan_bench
from .main import Command, CommandParser, Result, error_dict
from .ranks import (
    announcing_refusal,
    gather_texts,
    read_launched_layout,
    run_under_launcher,
    torch_errors,
)
from .rehearse import REHEARSE, read_script

PARTS = ("doctor", "bench", "rehearse")


def run_preflight(args: Namespace) -> Result:
    """Run the parts that were not skipped. Collective if a launcher has started this rank."""
    plan = None if "bench" in args.skip else plan_bench(args)
    rehearsal = _read_rehearsal(args, plan.layout if plan else _read_layout(args))
    world, parts, failed = detect(), dict[str, Result](), ""
    if "doctor" not in args.skip and not world.local_rank:
        parts["doctor"], failed = _check_host()
    if args.n is None and world.world_size > 1:
        given = args.device, args.timeout, failed, plan
        try:
            rank, hosts, run = run_under_launcher("", check_hosts, *given)
        except MeshkitError as error:
            if world.rank or plan is None:
                raise
            # the page comes at once, since a launcher ends this rank when the others have failed
            return _join_parts({**parts, "bench": _failed(error)})
        if rank:  # rank 0 has the page and the exit status
            return Result()
        if "doctor" in parts:
            parts["doctor"] = _with_hosts(parts["doctor"], [host for host in hosts[1:] if host])
        if plan is not None and run is not None:
            parts["bench"] = _part(lambda: plan.judge(0, run))
    elif plan is not None:
        parts["bench"] = _part(plan.run)
    if rehearsal is not None:
        parts["rehearse"] = _part(lambda: REHEARSE.run(rehearsal))
    return _join_parts(parts)


def check_hosts(
    device: str | None, timeout: float, failed: str, plan: BenchPlan | None
) -> tuple[int, list[str], results.BenchmarkRun | None]:
    """Return this rank, the failures of the host of each, and what was measured. Collective."""
    from ..launch.init import init

    with torch_errors("joining the job"):
        world = init(device=device, timeout=timeout)
    hosts = gather_texts(failed, str(world.device))
    run = None if plan is None else measure(device, plan.request, plan.layout)[1]
    return world.rank, hosts, run


def _check_host() -> tuple[Result, str]:
    """Return the checks of this host, and the line for rank 0 if some have failed.

    The page shows each check only if one has failed.
    """
    findings = doctor.checkup(environment())
    checked, count = doctor.as_result(findings), doctor.count_failed(findings)
    if checked.ok:
        return replace(checked, draw=lambda **_: f"doctor: {count}"), ""
    return checked, f"{socket.gethostname()}: {count} Run meshkit doctor there."


def _part(run: Callable[[], Result]) -> Result:
    """Return the result of a part, also if it raises."""
    try:
        return run()
    except MeshkitError as error:
        return _failed(error)


def _failed(error: MeshkitError) -> Result:
    """Return the result of a part that has raised."""
    shown = {"ok": False, "error": error_dict(error)}
    return Result(lambda: shown, lambda **_: error.text, False)


def _with_hosts(checked: Result, hosts: list[str]) -> Result:
    """Return the checks of this host with those that failed on others."""
    if not hosts or checked.as_dict is None or checked.draw is None:
        return checked
    as_dict, draw = checked.as_dict, checked.draw

    def draw_all(*, width: int, ascii: bool) -> str:
        failed = [line for host in hosts for line in wrap_lines(f"FAILED on {host}", width)]
        return "\n".join([draw(width=width, ascii=ascii), *failed])

    return Result(lambda: {**as_dict(), "ok": False, "other_hosts": hosts}, draw_all, False)


def _join_parts(parts: Mapping[str, Result]) -> Result:
    """Return one page, and one object, of all parts."""
    failed = [name for name, part in parts.items() if not part.ok]
    others = [name for name in PARTS if name not in parts]
    last = f"FAILED: {', '.join(failed)}" if failed else f"OK: {', '.join(parts)}"
    last += f"; not run: {', '.join(others)}." if others else "."

    def draw(*, width: int, ascii: bool) -> str:
        drawn = [part.draw for part in parts.values() if part.draw is not None]
        pages = [page(width=width, ascii=ascii) for page in drawn]
        return "\n\n".join([*pages, "\n".join(wrap_lines(last, width))])

    def as_dict() -> Mapping[str, object]:
        each = {name: part.as_dict() for name, part in parts.items() if part.as_dict is not None}
        return {"ok": not failed, **each}

    return Result(as_dict, draw, not failed)


def _read_layout(args: Namespace) -> Layout:
    """Return the layout of a job that is not measured, which may have no ranks here."""
    if args.n is not None or detect().launcher != "single":
        return read_launched_layout(args)
    return options.read_layout(args.words, Namespace(order=args.order, world_size=None))


def _read_rehearsal(args: Namespace, layout: Layout) -> Namespace | None:
    """Return the options of the rehearsal, or None without one."""
    if args.rehearse is None:
        if {"doctor", "bench"} <= {*args.skip}:
            raise SpecError("no part is left to run.", fix="leave out --skip, or add --rehearse.")
        return None
    words = ["--world-size", str(layout.num_ranks), *args.rehearse]
    rehearsal = CommandParser(REHEARSE).parse(words)
    if not detect().rank:  # which plays it
        with announcing_refusal(args):
            read_script(rehearsal)
    return rehearsal


def read_parts(text: str) -> tuple[str, ...]:
    """Read the parts to leave out, separated by commas."""
    parts = tuple(text.split(","))
    for part in parts:
        if part not in PARTS[:2]:
            raise ArgumentTypeError(f"{part!r} is neither doctor nor bench")
    return parts


def _add_options(parser: ArgumentParser) -> None:
    BENCH.add_options(parser)
    help = "leave out doctor, bench, or both: doctor,bench"
    parser.add_argument("--skip", type=read_parts, default=(), metavar="PARTS", help=help)
    help = "rehearse a script on the ranks of the mesh: its path and arguments, last on the line"
    parser.add_argument("--rehearse", nargs=REMAINDER, metavar="SCRIPT", help=help)


PREFLIGHT = Command(
    "preflight",
    "run doctor, bench and rehearse as one check before a job",
    _add_options,
    run_preflight,
    (
        "dp=2 -n 2 --iters 4 --max-latency dp=1e6",
        "dp=8 --skip doctor,bench \\\n    --rehearse --ranks 0 examples/train.py --steps 1",
    ),
)
