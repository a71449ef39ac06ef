"""Count what a process asks of torch's stores: every call of a store's method from Python.

Counted are the methods of :class:`torch.distributed.Store`, which all stores inherit, whoever calls
them. A call on a ``PrefixStore`` is one, however many prefixes lie between it and the store. What
torch does inside C++ does not pass through Python and is not counted: a backend that exchanges
addresses, a ``FileStore`` that counts its users when it is made.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch.distributed as dist

LOCAL = {"clone", "has_extended_api", "set_timeout"}  # methods that ask nothing of a store
ALL = "all"  # the sum over the methods

Counts = dict[str, int]
Range = tuple[int, int]  # the least and the most over ranks
Method = Callable[..., Any]


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Method name to how often it was called while the block ran, in any thread. Local.

    The methods are put back when the block ends, however it ends.

    Example:
        >>> store = dist.PrefixStore("outer", dist.PrefixStore("inner", dist.HashStore()))
        >>> with counted() as found:
        ...     store.set("key", "value")
        >>> found
        Counter({'set': 1})
    """
    found: Counter[str] = Counter()
    running = threading.local()
    before = [(kind, name, method) for kind in _kinds(dist.Store) for name, method in _asking(kind)]
    try:
        for kind, name, method in before:
            setattr(kind, name, _counting(name, method, found, running))
        yield found
    finally:
        for kind, name, method in before:
            setattr(kind, name, method)


def ranges(counts: Sequence[Mapping[str, int]]) -> dict[str, Range]:
    """The least and the most over ranks: of all methods together, and of each by itself.

    Args:
        counts: method name to calls, one mapping a rank.

    Example:
        >>> ranges([{"add": 2, "get": 1}, {"add": 2}])
        {'all': (2, 3), 'add': (2, 2), 'get': (0, 1)}
    """
    names = sorted({name for one in counts for name in one})
    of_each = {name: [one.get(name, 0) for one in counts] for name in names}
    numbers = {ALL: [sum(one.values()) for one in counts], **of_each}
    return {name: (min(found), max(found)) for name, found in numbers.items()}


def _kinds(kind: type) -> list[type]:
    """A class and all that inherit from it, each once."""
    children: list[type] = kind.__subclasses__()
    return list(dict.fromkeys([kind, *(one for child in children for one in _kinds(child))]))


def _asking(kind: type) -> list[tuple[str, Method]]:
    """The methods of a class itself that ask something of a store, by name."""
    return [
        (name, method)
        for name, method in vars(kind).items()
        if callable(method) and not name.startswith("_") and _is_operation(name)
    ]


def _is_operation(name: str) -> bool:
    """Whether torch's own stores have a method of this name, and it is not a local one."""
    return name in vars(dist.Store) and name not in LOCAL


def _counting(name: str, method: Method, found: Counter[str], running: threading.local) -> Method:
    """The method, counted unless another one runs on this thread: a store written in Python."""

    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        if getattr(running, "inside", False):
            return method(*args, **kwargs)
        found[name] += 1
        running.inside = True
        try:
            return method(*args, **kwargs)
        finally:
            running.inside = False

    return call
