"""Quote a call as its caller wrote it, in every error that leaves a public function."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar

from .errors import MeshkitError

Params = ParamSpec("Params")
Result = TypeVar("Result")

PACKAGE = __file__.rpartition("core")[0]  # the folder of meshkit, with its separator
MAX_REPR = 100  # characters of an object's repr in a quoted call


def format_value(value: object, name: str = "...") -> str:
    """Return the ``repr`` of an argument, shortened for long lists and for large objects.

    A function or a class is quoted by its name.

    Example:
        >>> format_value(list(range(100))), format_value(object(), "dataset")
        ('[0, 1, ..., 99]', 'dataset')
    """
    if hasattr(value, "tolist") and hasattr(value, "dtype") and type(value).__module__ == "numpy":
        return _format_array(value, name)
    if isinstance(value, Sequence) and not isinstance(value, str | range) and len(value) > 8:
        short = f"[{value[0]!r}, {value[1]!r}, ..., {value[-1]!r}]"
        return name if _is_opaque(value[0]) else short
    if callable(value) and (title := str(getattr(value, "__name__", ""))).isidentifier():
        return title
    if isinstance(value, Mapping) and any(_is_opaque(item) for item in value.values()):
        return "{" + ", ".join(f"{k!r}: {format_value(v)}" for k, v in value.items()) + "}"
    return name if _is_opaque(value) else repr(value)


def _format_array(array: Any, name: str) -> str:  # noqa: ANN401  # numpy is not imported
    """Return a numpy array or scalar as text. A broadcast array may be larger than the memory."""
    if array.size <= 8:
        return repr(array.tolist())
    if array.ndim > 1:
        return name
    return "[{!r}, {!r}, ..., {!r}]".format(*array[[0, 1, -1]].tolist())


def _is_opaque(value: object) -> bool:
    """Return whether an object's repr is uninformative, or too long for a line of text."""
    if value is None or isinstance(value, int | float | range):
        return False
    if isinstance(value, str):
        return len(value) > MAX_REPR or len(value.splitlines()) > 1
    if type(value).__eq__ is object.__eq__:  # an object with an identity, such as a live mesh
        return True
    text = repr(value)
    return text.startswith("<") or "\n" in text or len(text) > MAX_REPR


class Verbatim(str):
    """Text that stands for an object in a quoted call, printed without quotation marks.

    Example:
        >>> print(Call("Mpu", (Verbatim("mesh"),)))
        Mpu(mesh)
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class Call(NamedTuple):
    """A function name and its arguments.

    Example:
        >>> call = Call("build_mesh", kwargs={"dp": 4, "sp": 2, "tp": 1})
        >>> print(call)
        build_mesh(dp=4, sp=2, tp=1)
        >>> print(call.with_args(dp=None, order="sp dp tp"))
        build_mesh(sp=2, tp=1, order='sp dp tp')
    """

    name: str
    args: tuple[object, ...] = ()
    kwargs: Mapping[str, object] = {}
    parameters: tuple[str, ...] = ()

    def __str__(self) -> str:
        names = [*self.parameters, *["..."] * len(self.args)]
        args = [format_value(value, name) for name, value in zip(names, self.args, strict=False)]
        given = {name: value for name, value in self.kwargs.items() if value is not None}
        kwargs = [f"{name}={format_value(value, name)}" for name, value in given.items()]
        return f"{self.name}({', '.join(args + kwargs)})"

    def with_args(self, **changes: object) -> Call:
        """Return the same call with some arguments changed, added, or (None) left out.

        A size is changed inside the mapping that holds it; a positional argument in its place.
        """
        args, left = [*self.args], dict(changes)
        for index, value in enumerate(args):
            if isinstance(value, Mapping) and left.keys() & value.keys():
                sizes = {name: left.pop(name, size) for name, size in value.items()}
                args[index] = {name: size for name, size in sizes.items() if size is not None}
            elif index < len(self.parameters) and self.parameters[index] in left:
                args[index] = left.pop(self.parameters[index])
        kwargs = {**self.kwargs, **left}
        return self._replace(args=tuple(args), kwargs=drop_none(**kwargs))


def drop_none(**options: object) -> dict[str, object]:
    """Return the options that are not None."""
    return {name: value for name, value in options.items() if value is not None}


def caller_level() -> int:
    """Return the ``stacklevel`` of the first frame outside meshkit, for a warning of the caller."""
    import inspect

    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame, level = frame.f_back, level + 1
    return level


def _is_deep(error: TypeError) -> bool:
    """Return whether the function was entered: its arguments do fit."""
    return error.__traceback__ is not None and error.__traceback__.tb_next is not None


def _cut_own_frames(error: MeshkitError) -> None:
    """Remove the frames of meshkit below a public function from the traceback of its error.

    ``raised_at`` keeps the last one. A traceback with frames of the caller in between, such as a
    function that was passed in, stays whole.
    """
    frames = []
    trace = error.__traceback__
    while trace is not None:
        frames.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    if frames and all(file.startswith(PACKAGE) for file, _ in frames):
        error.raised_at = error.raised_at or frames[-1]
        error.__traceback__ = None


def _quoting(
    name: str, function: Callable[..., object], by_name: tuple[str, ...]
) -> Callable[[Sequence[object], Mapping[str, object]], Call]:
    """Return a function that returns the call of a public function with its arguments."""
    code = function.__code__
    parameters = code.co_varnames[: code.co_argcount]
    skip = 1 if parameters[:1] in (("self",), ("cls",)) else 0
    required = len(parameters) - len(function.__defaults__ or ())

    def quote(args: Sequence[object], kwargs: Mapping[str, object]) -> Call:
        while len(args) > required and args[-1] is None:  # the same as not given
            args = args[:-1]
        names = parameters[skip : len(args)]
        values = [
            Verbatim(n) if n in by_name else v for n, v in zip(names, args[skip:], strict=False)
        ]
        options = {n: Verbatim(n) if n in by_name else v for n, v in kwargs.items()}
        positional = (*values, *args[len(parameters) :])
        return Call(name, positional, options, parameters[skip:])

    return quote


def public(
    name: str,
    *,
    by_name: tuple[str, ...] = (),
    explain: Callable[[Sequence[Any], Mapping[str, Any]], MeshkitError | None] | None = None,
) -> Callable[[Callable[Params, Result]], Callable[Params, Result]]:
    """Return a decorator that quotes the call in every MeshkitError that leaves the function.

    The outermost public function wins: its call is the one that the user wrote. The traceback of
    the error ends at that function. A generator keeps the call and the traceback of an error that
    was raised in the body of its ``with`` statement.

    The call quotes the parameters in ``by_name`` by their names. If the arguments do not fit the
    function, ``explain`` returns the error to raise instead of the TypeError, or None.

    Cost: no work but one more Python call until an error is raised.
    """

    def decorate(function: Callable[Params, Result]) -> Callable[Params, Result]:
        quote = _quoting(name, function, by_name)

        @functools.wraps(function)
        def call(*args: Params.args, **kwargs: Params.kwargs) -> Result:
            try:
                return function(*args, **kwargs)
            except TypeError as error:
                reason = None if explain is None or _is_deep(error) else explain(args, kwargs)
                if reason is None:
                    raise
                raise reason.quote(quote(args, kwargs)) from None
            except MeshkitError as error:
                error.quote(quote(args, kwargs))
                _cut_own_frames(error)
                raise error

        @functools.wraps(function)
        def generate(*args: Params.args, **kwargs: Params.kwargs) -> Iterator[Any]:
            try:
                yield from function(*args, **kwargs)  # type: ignore[misc]
            except MeshkitError as error:
                if error.call is None:
                    error.quote(quote(args, kwargs))
                raise

        is_generator = bool(function.__code__.co_flags & 0x20)
        return generate if is_generator else call  # type: ignore[return-value]

    return decorate
