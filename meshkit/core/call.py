"""Quote a call as its caller wrote it, in every error that leaves a public function."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from .aliases import misfit_error
from .errors import MeshkitError

Params = ParamSpec("Params")
Result = TypeVar("Result")

PACKAGE = __file__.rpartition("core")[0]  # the folder of meshkit, with its separator
MAX_REPR = 100  # characters of an object's repr in a quoted call


def format_value(value: object, name: str = "...") -> str:
    """Return the ``repr`` of an argument, shortened for long lists and for large objects.

    A function or a class is quoted by its name. The name stands for a value whose repr fails, such
    as a CUDA tensor after an error of the device.

    Example:
        >>> format_value(list(range(100))), format_value(object(), "dataset")
        ('[0, 1, ..., 99]', 'dataset')
    """
    try:
        return _format_value(value, name)
    except Exception:  # an argument can raise anything, and must not hide the error
        return name


def _format_value(value: Any, name: str) -> str:  # noqa: ANN401
    ends: list[object] = []
    if type(value).__module__ == "numpy":  # a broadcast array may be larger than the memory
        if value.size <= 8 or value.ndim > 1:
            return repr(value.tolist()) if value.size <= 8 else name
        ends = value[[0, 1, -1]].tolist()
    elif isinstance(value, Sequence) and not isinstance(value, str | range) and len(value) > 8:
        ends = [value[0], value[1], value[-1]]
    if ends:
        return name if _is_opaque(ends[0]) else "[{!r}, {!r}, ..., {!r}]".format(*ends)
    if callable(value) and (title := str(getattr(value, "__name__", ""))).isidentifier():
        return title
    if isinstance(value, Mapping) and any(_is_opaque(item) for item in value.values()):
        return "{" + ", ".join(f"{k!r}: {format_value(v)}" for k, v in value.items()) + "}"
    return name if _is_opaque(value) else repr(value)


def _is_opaque(value: object) -> bool:
    """Return whether an object's repr is uninformative, or too long for a line of text."""
    if value is None or isinstance(value, int | float | range):
        return False
    if type(value).__eq__ is object.__eq__:  # an object with an identity, such as a live mesh
        return True
    text = value if isinstance(value, str) else repr(value)
    return text.startswith("<") or len(text) > MAX_REPR or len(text.splitlines()) > 1


class Verbatim(str):
    """Text that stands for an object in a quoted call, printed without quotation marks.

    Example:
        >>> print(Call("Mpu", (Verbatim("mesh"),)))
        Mpu(mesh)
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class Call:
    """The text of a call. It is made at once, so it keeps no argument and follows no change of one.

    Example:
        >>> print(Call("build_mesh", kwargs={"dp": 4, "sp": 2, "tp": 1}))
        build_mesh(dp=4, sp=2, tp=1)
    """

    def __init__(
        self,
        name: str,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] = {},
        parameters: Sequence[str] = (),
    ) -> None:
        names = [*parameters, *["..."] * len(args)]
        texts = [format_value(value, name) for name, value in zip(names, args, strict=False)]
        texts += [f"{n}={format_value(v, n)}" for n, v in kwargs.items() if v is not None]
        self.name = name
        self.text = f"{name}({', '.join(texts)})"

    def __str__(self) -> str:
        return self.text


def changes(**arguments: object) -> str:
    """Return the words of a fix: arguments to pass, and (None) to leave out.

    Example:
        >>> changes(dp=4, order=None)
        'dp=4, and leave out order'
    """
    given = [f"{n}={format_value(v, n)}" for n, v in arguments.items() if v is not None]
    left_out = [name for name, value in arguments.items() if value is None]
    parts = [", ".join(given)] * bool(given)
    parts += [f"leave out {' and '.join(left_out)}"] * bool(left_out)
    return ", and ".join(parts)


def either(*ways: str) -> str:
    """Return alternatives as one sentence."""
    return f"{', or '.join(ways)}."


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


def _quoting(
    name: str, function: Callable[..., object], by_name: Sequence[str]
) -> Callable[[Sequence[object], Mapping[str, object]], Call]:
    """Return a function that returns the call of a public function with its arguments."""
    code = function.__code__
    parameters = code.co_varnames[: code.co_argcount]
    skip = 1 if parameters[:1] in (("self",), ("cls",)) else 0
    required = len(parameters) - len(function.__defaults__ or ())

    def quote(args: Sequence[object], kwargs: Mapping[str, object]) -> Call:
        while len(args) > required and args[-1] is None:  # the same as not given
            args = args[:-1]
        values = [
            Verbatim(parameters[i]) if parameters[i : i + 1] and parameters[i] in by_name else value
            for i, value in enumerate(args)
        ]
        options = {n: Verbatim(n) if n in by_name else v for n, v in kwargs.items()}
        return Call(name, values[skip:], options, parameters[skip:])

    return quote


def quotes_call(
    name: str, *, by_name: Sequence[str] = ()
) -> Callable[[Callable[Params, Result]], Callable[Params, Result]]:
    """Return a decorator that quotes the call in every MeshkitError that leaves the function.

    The outermost public function wins: its call is the one that the user wrote. A generator keeps
    the call of an error that was raised in the body of its ``with`` statement. The call quotes the
    parameters in ``by_name`` by their names. A call in the words of another library raises an error
    of meshkit in place of the TypeError.

    Cost: no work but one more Python call until an error is raised.
    """

    def decorate(function: Callable[Params, Result]) -> Callable[Params, Result]:
        quote, code = _quoting(name, function, by_name), function.__code__
        parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]

        @functools.wraps(function)
        def call(*args: Params.args, **kwargs: Params.kwargs) -> Result:
            try:
                return function(*args, **kwargs)
            except MeshkitError as error:
                error.quote(quote(args, kwargs))
                raise
            except TypeError as error:
                is_entered = error.__traceback__ and error.__traceback__.tb_next
                misfit = None if is_entered else misfit_error(name, parameters, args, kwargs, quote)
                if misfit is None:
                    raise
                raise misfit.quote(quote(args, kwargs)) from None

        @functools.wraps(function)
        def generate(*args: Params.args, **kwargs: Params.kwargs) -> Iterator[Any]:
            try:
                yield from function(*args, **kwargs)  # type: ignore[misc]
            except MeshkitError as error:
                if error.call is None:
                    error.quote(quote(args, kwargs))
                raise

        return generate if code.co_flags & 0x20 else call  # type: ignore[return-value]

    return decorate
