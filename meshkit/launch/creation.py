"""Create groups on every rank or on none, and end in time whatever torch waits for.

torch waits for peers while it creates groups, with timeouts of its own: a rank that dies at that
moment would block the others for half an hour. gloo connects every pair of a group, and keeps the
time that this may take as the time of every send and receive. So a group is created with its own
timeout, in a thread that is given up when the ranks have waited long enough for each other, or when
another rank has failed. While it waits for the address of a peer, it ends at once, through a store
that asks. While it waits for the connection itself, it stays until torch gives up.

No group connects at its first use (``TORCH_GLOO_LAZY_INIT``): the destructor of such a group can
wait for ever after a failed collective, since gloo's loop reads data for which no buffer is left.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from .agreement import Agreement
from .judges import all_done, failure_error
from .process import current_process
from .store import Store
from .times import TIMES, Deadline, DeadlineExceededError, run_with_deadline
from .torch_groups import CONNECT_ATTEMPTS

Result = TypeVar("Result")


@dataclass(eq=False)
class Creation:
    """The creation of groups on this rank, which may go on in a thread after it was given up."""

    deadline: Deadline
    is_given_up: bool = False

    def check(self) -> None:
        """Raise if the groups are not wanted any more, so that no further one is created."""
        if self.is_given_up:
            raise RuntimeError("this creation of groups was given up")

    @property
    def attempt(self) -> timedelta:
        """The time of each attempt of gloo to connect a pair, if its store cannot be asked."""
        return timedelta(seconds=max(2.0, self.deadline.left / CONNECT_ATTEMPTS))


class _Here(threading.local):
    creation: Creation | None = None  # the one of this thread


_here = _Here()


class GroupStore(dist.Store):
    """The store through which groups meet: a wait in it ends when the creation is given up.

    It polls its keys, so that all groups share the client of their rank.
    """

    def __init__(self, part: Store, timeout: timedelta) -> None:
        super().__init__()
        self.part, self.limit, self.written = part, timeout, list[str]()
        self.set_timeout(timeout)

    @property
    def raw(self) -> Any:  # noqa: ANN401  # torch's types lack Store.multi_get
        """The store of torch that this one stands for."""
        return self.part.raw

    def set(self, key: str, value: Any) -> None:  # noqa: ANN401  # text or bytes
        """Write a value."""
        if _here.creation is not None:
            self.written.append(key)
        self.raw.set(key, value)

    def take(self) -> list[str]:
        """Return the keys that this rank has written since the last call, to create groups."""
        keys, self.written = self.written, []
        return keys

    def delete(self, keys: Sequence[str]) -> None:
        """Delete keys of groups that all ranks have connected. In a deadline."""
        self.part.delete(*keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys exist, as every store does."""
        creation, pause = _here.creation, 0.0005
        deadline = Deadline.after(self.limit if timeout is None else timeout)
        while not self.raw.check(keys):
            if creation is not None:
                creation.check()
            if deadline.expired:
                missing = ", ".join(key for key in keys if not self.raw.check([key]))
                raise dist.DistStoreError(f"wait timeout after {deadline}, keys: {missing}")
            time.sleep(min(pause, deadline.left))
            pause = min(2 * pause, 0.1)
            self.part.check()

    def get(self, key: str) -> Any:  # noqa: ANN401  # bytes
        """Return the value of a key, once it exists."""
        self.wait([key])
        return self.raw.get(key)

    def has_extended_api(self) -> bool:
        """Return that it reads many keys at once, which gloo asks; a file can append to none."""
        return True

    def multi_get(self, keys: list[str]) -> Any:  # noqa: ANN401
        """Return the values of many keys, once all exist: the addresses of all peers."""
        self.wait(keys)
        if self.raw.has_extended_api():
            return self.raw.multi_get(keys)
        return [self.raw.get(key) for key in keys]


def _pass_on(name: str) -> Callable[..., object]:
    return lambda store, *values: getattr(store.raw, name)(*values)


# torch calls what the class defines in Python, by its name in Python or in C++
NAMES = "add check compare_set append multi_set"
for _name in (*NAMES.split(), "num_keys", "delete_key"):
    setattr(GroupStore, _name, _pass_on(_name))
GroupStore.getNumKeys = GroupStore.num_keys  # type: ignore[attr-defined]
GroupStore.deleteKey = GroupStore.delete_key  # type: ignore[attr-defined]


def create_on_all(
    agreement: Agreement | None,
    timeout: timedelta,
    create: Callable[[Creation], Result],
    undo: Callable[[Result], object],
    *,
    connects: bool,
) -> Result:
    """Return the result of ``create``, once every rank has created it; else undo it. Collective.

    Creation is limited to the time that ranks wait for each other, 10 s at least.

    Args:
        agreement: confirms it; None if nothing can fail on one rank only.
        timeout: how long ranks wait for each other.
        create: creates the groups; if it takes too long, or another rank fails, it is given up.
        undo: destroys what was created.
        connects: whether creation waits for other ranks.
    """
    limit = max(timeout, timedelta(seconds=TIMES.create))
    whole = limit + timedelta(seconds=TIMES.create_report)
    creation = Creation(Deadline.after(limit))
    if agreement is None:
        return create(creation)
    deadline, facts = Deadline.after(whole), {"call": f"the end of {agreement.call}"}
    summary, rank, seconds = agreement.summary, agreement.rank, whole.total_seconds()
    judge = all_done(summary, seconds=seconds, describe=agreement.describe)
    with agreement:
        try:
            if connects:
                created = _in_time(
                    limit, creation, create, undo, stop=partial(agreement.has_failed, judge)
                )
            else:
                created = create(creation)
        except RuntimeError as error:  # torch's own: a peer may be the reason
            objection = failure_error(summary, rank, current_process(), error)
            agreement.arrive(facts, objection=objection, deadline=deadline)
            reason = agreement.decide(judge, deadline=deadline).error
            if reason is None or rank in getattr(reason, "requests", ()):
                raise
            try:
                raise reason from error
            finally:
                del reason  # a frame that holds its own error would keep groups
        try:
            agreement.arrive(facts, deadline=deadline)
            # If a rank closed its groups while another still connects, that one would hang.
            deadline = deadline if connects else Deadline.after(whole)
            agreement.decide(judge, deadline=deadline).check(rank)
        except BaseException:
            undo(created)
            raise
    return created


def _in_time(
    limit: timedelta,
    creation: Creation,
    create: Callable[[Creation], Result],
    undo: Callable[[Result], object],
    *,
    stop: Callable[[], bool],
) -> Result:
    """Return what is created, or undo it if it comes too late; give up if ``stop()``."""
    has_device = torch.accelerator.is_available()
    device = torch.accelerator.current_device_index() if has_device else 0

    def work() -> Result:  # in a thread, which begins with device 0
        if has_device:
            torch.accelerator.set_device_index(device)
        _here.creation = creation
        return create(creation)

    try:
        return run_with_deadline(limit.total_seconds(), work, late=undo, stop=stop)
    except BaseException as error:
        creation.is_given_up = True
        if not isinstance(error, DeadlineExceededError):
            raise
        raise RuntimeError(str(error)) from None
