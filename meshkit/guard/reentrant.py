"""A guard that several threads and tasks enter, and that decorates functions of every kind.

Python keeps one object for all blocks of ``guard = mesh.guard(timeout=60)``, and for all calls of a
function that is decorated with it. So each entry makes a context manager of its own. On leaving, a
thread or task finds the one that it has entered by the tracker of its context::

    with guard:          thread 1 enters its context manager ............... leaves it
        step()           thread 2 ........... enters its own ... leaves it
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractContextManager
from typing import Any, TypeVar, cast

from ..errors import MeshkitError, SpecError
from ..groups.status import CollectiveTracker, current_tracker
from ..launch.of_one_process import OfOneProcess

Function = TypeVar("Function", bound=Callable[..., Any])


class ReentrantGuard(OfOneProcess, AbstractContextManager[None]):
    """A guard that may be entered again, also while it is open, and may decorate a function."""

    def __init__(self, make: Callable[[], AbstractContextManager[None]]) -> None:
        self._make = make
        self._entered = list[tuple[CollectiveTracker | None, AbstractContextManager[None]]]()

    def __enter__(self) -> None:
        guard = self._make()
        guard.__enter__()
        self._entered.append((current_tracker(), guard))

    def __exit__(self, *error: Any) -> bool | None:  # noqa: ANN401
        tracker = current_tracker()
        around = [] if tracker is None else tracker.around()
        # a generator may be closed in another thread than the one in which it began
        entries = [entry for entry in self._entered if entry[0] in around] or self._entered
        if not entries:
            fix = "with mesh.guard(timeout=60): step(), which enters and leaves it."
            raise MeshkitError("a guard is left that is not entered.", fix=fix)
        self._entered.remove(entry := entries[-1])
        return entry[1].__exit__(*error)

    def __call__(self, function: Function) -> Function:
        """Return the function with this guard around each run of its body, until the body ends.

        Raises:
            SpecError: for a class, a property or a class method, which would become a function.
        """
        if isinstance(function, type | property | classmethod):
            kind = "class" if isinstance(function, type) else type(function).__name__
            fix = f"@mesh.guard(...) below @{kind}."
            if isinstance(function, type):
                fix = "@mesh.guard(...) on its methods, or with mesh.guard(...): around the calls."
            raise SpecError(f"a guard decorates a function, and this is a {kind}.", fix=fix)
        held: Any = function
        if isinstance(held, staticmethod):
            return cast(Function, staticmethod(self(held.__func__)))
        body: Any = function
        if not (inspect.isroutine(function) or isinstance(function, functools.partial)):
            body = type(held).__call__  # of an object that is called
        wrapped: Callable[..., Any]
        if inspect.iscoroutinefunction(body):
            wrapped = self._around_coroutine(function)
        elif inspect.isasyncgenfunction(body):
            wrapped = self._around_async_generator(function)
        elif inspect.isgeneratorfunction(body):
            wrapped = self._around_generator(function)
        else:
            wrapped = self._around_call(function)
        return cast(Function, functools.update_wrapper(wrapped, function))

    def _around_call(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Guard a call, and the coroutine that it may return, which has not begun then."""

        def wrapped(*args: object, **kwargs: object) -> object:
            with self:
                result = function(*args, **kwargs)
            is_pending = inspect.iscoroutine(result)
            return self._around_coroutine(lambda: result)() if is_pending else result

        return wrapped

    def _around_coroutine(self, function: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
        async def wrapped(*args: object, **kwargs: object) -> object:
            with self:
                return await function(*args, **kwargs)

        return wrapped

    def _around_generator(
        self, function: Callable[..., Generator[Any, Any, Any]]
    ) -> Callable[..., Any]:
        def wrapped(*args: object, **kwargs: object) -> Generator[Any, Any, Any]:
            with self:
                return (yield from function(*args, **kwargs))

        return wrapped

    def _around_async_generator(
        self, function: Callable[..., AsyncGenerator[Any, Any]]
    ) -> Callable[..., Any]:
        async def wrapped(*args: object, **kwargs: object) -> AsyncGenerator[Any, Any]:
            with self:
                generator = function(*args, **kwargs)
                resumed = generator.asend(None)
                while True:
                    try:
                        item = await resumed
                    except StopAsyncIteration:
                        return
                    try:
                        resumed = generator.asend((yield item))
                    except GeneratorExit:
                        await generator.aclose()
                        raise
                    except BaseException as error:
                        resumed = generator.athrow(error)

        return wrapped
