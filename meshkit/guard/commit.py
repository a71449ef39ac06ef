"""Commit a step: no rank changes its weights unless the collectives of every rank went well.

On NCCL a call returns before its work is done, and nothing raises in the thread that made it. After
an abort the kernels that wait for a collective go on with what is in memory, so an optimizer step
would apply partial sums. ``mesh.commit()`` stands between the backward and the step::

    rank 0   all_reduce ... aborted   commit: waits for its device, has read a report: votes no
    rank 1   all_reduce ... done      commit: waits for its device, votes yes ... reads no
                                      both raise the report before optimizer.step()

The votes are a round of the mesh: ``round/<n>`` if the mesh has all ranks of the job, and else
``mesh/<id>/round/<n>``. Its keys go two rounds later::

    key         written by                                         means
    arrived     a rank that votes yes                              its device is done
    decision    a rank that votes no, with its report              no rank takes the step
                else the last rank to arrive                       all ranks take the step

The call waits for the current stream, asks each group for its error, and takes one vote of all
ranks. Without a guard that has a timeout it waits for its device as long as torch does. On gloo the
failed call itself raises, and a commit raises again if this rank has seen a report.

A rank may be one step ahead of another one after a failure, which ``mesh.recover`` and
``mesh.recovery.restore`` repair. On NCCL ``recover(step=n)`` refuses a rank that has committed
fewer than n steps since the job began.
"""

from __future__ import annotations

from functools import partial

import torch

from ..call import quotes_call
from ..errors import CollectiveError, MeshkitError, RankTimeoutError
from ..groups.groups import is_destroyed_collectively
from ..groups.open_mesh import agreement_of
from ..groups.registry import MeshGroups
from ..groups.status import check_pending
from ..launch.disagreement import REBUILD_ADVICE
from ..launch.job import Job
from ..launch.judges import Arrivals, Decision, Judge
from ..launch.torch_aborts import error_of
from ..launch.torch_groups import is_nccl
from .state import GuardedMesh, GuardState, last_report

SUMMARY = "a collective of this step has failed on a rank, so no rank takes the step."
ADVICE = f"mesh.recover(step=...), or {REBUILD_ADVICE}."
LOOK = 0.5  # seconds between two looks for a report while this rank waits for the others


@quotes_call("mesh.commit")
def commit(self: GuardedMesh) -> None:
    """Raise on every rank if a collective of this step has failed; call it before the step.

    Every rank calls it once a step, after the backward and before ``optimizer.step()``, inside
    a guard with a timeout. Run on gloo, and with NCCL on one GPU that several ranks share.
    Collective on NCCL, where a failed collective leaves partial sums; local on gloo. See
    :mod:`meshkit.guard.commit`.

    Raises:
        CollectiveError: the same on every rank, if a rank has seen a failure, or does not come
            within the ``arrival_timeout`` of the mesh.
        DisagreementError: the same on every rank, if ranks of a group made different calls of
            :meth:`redistribute` and the like in this guard.

    Cost: nothing on gloo. On NCCL a wait for the current stream, and 4 store operations per
    rank.

    Example:
        ``loss.backward(); mesh.commit(); optimizer.step()``
    """
    mesh, job, state = self._groups, self._proposal.job, self._guard_state
    mesh.check_can_communicate()
    if not is_destroyed_collectively(mesh.groups.by_key.values()):
        if (error := find_failure(mesh, job, state)) is not None:
            raise error
    else:
        _wait_for_step(self.device)
        _vote(mesh, job, state)
    mesh.committed += 1


def _wait_for_step(device: torch.device) -> None:
    """Wait until the device has done what this thread has put into its current stream.

    A collective is in it once a rank has waited for its work, or has not asked for one. Those of
    the next step, begun early, may still run.
    """
    module = torch.get_device_module(device)
    if hasattr(module, "Event") and hasattr(module, "current_stream"):
        event = module.Event()
        event.record(module.current_stream(device))
        event.synchronize()
    else:  # a device without streams
        module.synchronize(device)


def find_failure(mesh: MeshGroups, job: Job, state: GuardState) -> MeshkitError | None:
    """Return the failure that this rank has seen: the report of a guard, or an error of NCCL."""
    if (report := last_report(state)) is not None:
        return report
    name, device = f"Rank {mesh.rank}", job.world.device or torch.device("cpu")
    if job.counts.is_aborted:
        return CollectiveError(SUMMARY, f"{name} has aborted its groups.", fix=ADVICE)
    for axes, group in mesh.held:
        if is_nccl(group) and (error := error_of(group, device)):
            where = f"the group over {' '.join(axes) or 'one rank'}"
            line = f"{name}: torch's watchdog reports {error} of {where}."
            return CollectiveError(SUMMARY, line, fix=ADVICE)
    return None


def _vote(mesh: MeshGroups, job: Job, state: GuardState) -> None:
    """Let all ranks of the mesh agree that no collective has failed. Collective over the mesh."""
    is_alone = mesh.plan.layout.num_ranks == 1
    agreement = None if is_alone else agreement_of(mesh, job, "mesh.commit", SUMMARY)
    failure = find_failure(mesh, job, state)
    if agreement is None:
        if failure is not None:
            raise failure
        return
    with agreement:
        if failure is None:
            check_pending(wait=True)
            agreement.arrive({"call": "mesh.commit"})
            # its guard may have read a report meanwhile
            failure = agreement.watch(partial(find_failure, mesh, job, state), every=LOOK)
        if failure is not None:
            agreement.round.say(Decision(failure))
        agreement.decide(partial(_judge, agreement.judge())).check(mesh.rank)


def _judge(same: Judge, seen: Arrivals) -> Decision | None:
    """Return the decision on equal facts; missing ranks are a failed collective."""
    decision = same(seen)
    error = decision.error if decision is not None else None
    if not isinstance(error, RankTimeoutError) or isinstance(error, CollectiveError):
        return decision
    missing = error.missing_ranks
    summary, fix = error.summary, error.fix
    return Decision(CollectiveError(summary, *error.evidence, fix=fix, missing_ranks=missing))


def committed_steps(mesh: MeshGroups, before: int) -> int | None:
    """Return how many steps this rank has committed; None if steps need no vote. Local."""
    is_voted = is_destroyed_collectively(mesh.groups.by_key.values())
    return before + mesh.committed if is_voted and mesh.rank in mesh.plan.layout else None
