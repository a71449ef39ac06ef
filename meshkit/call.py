"""Quote a call as its caller wrote it in every error; check integers and indices of callers.

Everything with ``__index__`` is an integer, except a bool.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np

from .errors import CoordinateError, MeshkitError, SpecError
from .synonyms import misfit_error
from .text import Ints, article, count_noun, plural

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


Params = ParamSpec("Params")
Result = TypeVar("Result")

PACKAGE = __file__.rpartition("call")[0]  # the folder of meshkit, with its separator
HIDDEN = (PACKAGE, contextlib.__file__)  # files that tracebacks and warnings of users leave out
MAX_REPR = 100  # characters of an object's repr in a quoted call
MAX_FACTOR = 10**6  # the largest factor tried, so that an error does not take minutes


def format_value(value: Any, name: str = "...") -> str:  # noqa: ANN401
    """Return the ``repr`` of an argument, shortened for long lists and for large objects."""
    try:
        is_array = type(value).__module__ == "numpy"
        if is_array and value.size <= 8:
            return repr(value.tolist())
        if is_array and value.ndim > 1:  # a broadcast array may be larger than the memory
            return name
        is_list = isinstance(value, Sequence) and not isinstance(value, str | range)
        if is_array or (is_list and len(value) > 8):
            ends = (value[0], value[1], value[-1])
            ends = np.array(ends).tolist() if is_array else ends
            return name if _is_opaque(ends[0]) else "[{!r}, {!r}, ..., {!r}]".format(*ends)
        if callable(value) and (title := str(getattr(value, "__name__", ""))).isidentifier():
            return title
        if isinstance(value, Mapping) and any(_is_opaque(item) for item in value.values()):
            return "{" + ", ".join(f"{k!r}: {format_value(v)}" for k, v in value.items()) + "}"
        return name if _is_opaque(value) else repr(value)
    except Exception:  # an argument can raise anything, and must not hide the error
        return name


def _is_opaque(value: object) -> bool:
    """Return whether an object's repr is uninformative, or too long for a line of text."""
    if value is None or isinstance(value, int | float | range):
        return False
    if type(value).__eq__ is object.__eq__:  # an object with an identity, such as a live mesh
        return True
    text = value if isinstance(value, str) else repr(value)
    return text.startswith("<") or len(text) > MAX_REPR or len(text.splitlines()) > 1


class Verbatim(str):
    """Text that stands for an object in a quoted call, printed without quotation marks."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class Call:
    """The text of a call, made at once: it keeps no argument and follows no change of one."""

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
    """Return the words of a fix: arguments to pass, and (None) to leave out."""
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
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_code.co_filename.startswith(HIDDEN):
        frame, level = frame.f_back, level + 1
    return level


def _quote(
    name: str,
    function: Callable[..., object],
    by_name: Sequence[str],
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> Call:
    """Return the call of a function with its arguments."""
    parameters = function.__code__.co_varnames[: function.__code__.co_argcount]
    required = len(parameters) - len(function.__defaults__ or ())
    while len(args) > required and args[-1] is None:  # the same as not given
        args = args[:-1]
    names = [*parameters, *[""] * len(args)]
    values = [Verbatim(n) if n in by_name else v for n, v in zip(names, args, strict=False)]
    options = {n: Verbatim(n) if n in by_name else v for n, v in kwargs.items()}
    skip = 1 if parameters[:1] in (("self",), ("cls",)) else 0
    return Call(name, values[skip:], options, parameters[skip:])


def quotes_call(
    name: str, *, by_name: Sequence[str] = ()
) -> Callable[[Callable[Params, Result]], Callable[Params, Result]]:
    """Return a decorator that quotes the call in every MeshkitError that leaves the function.

    The outermost public function wins: its call is the one that the user wrote. A generator keeps
    the call of an error that was raised in the body of its ``with`` statement. The call quotes the
    parameters in ``by_name`` by their names. A call in the words of another library raises an error
    of meshkit in place of the TypeError.
    """

    def decorate(function: Callable[Params, Result]) -> Callable[Params, Result]:
        @functools.wraps(function)
        def call(*args: Params.args, **kwargs: Params.kwargs) -> Result:
            __tracebackhide__ = True  # notebooks and pytest leave out this frame
            try:
                return function(*args, **kwargs)
            except (MeshkitError, TypeError) as error:
                answer = _answer(error, name, function, by_name, args, kwargs)
                try:
                    if answer is error:
                        raise
                    raise answer from None
                finally:
                    del answer  # a frame that holds its own error would keep groups

        @functools.wraps(function)
        def generate(*args: Params.args, **kwargs: Params.kwargs) -> Iterator[Any]:
            try:
                yield from function(*args, **kwargs)  # type: ignore[misc]
            except MeshkitError as error:
                if error.call is None:
                    error.quote(_quote(name, function, by_name, args, kwargs))
                raise

        is_generator = inspect.isgeneratorfunction(function)
        return generate if is_generator else call  # type: ignore[return-value]

    return decorate


def _answer(
    error: MeshkitError | TypeError,
    name: str,
    function: Callable[..., object],
    by_name: Sequence[str],
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> Exception:
    """Return the error of a call with its quote, or in its place what the arguments say."""
    code = function.__code__
    parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    quote = functools.partial(_quote, name, function, by_name)
    if moved := _reorder(by_name, parameters, args):
        typed = _quote(name, function, (), args, kwargs)
        names = [own for own in parameters[: code.co_argcount] if own not in ("self", "cls")]
        line = f"the arguments are {', '.join(names)}, in this order."
        return SpecError(line, fix=f"{quote(moved, kwargs)}.").quote(typed)
    if isinstance(error, MeshkitError):
        return error.quote(quote(args, kwargs))
    if error.__traceback__ and error.__traceback__.tb_next:  # the function raised it
        return error
    misfit = misfit_error(name, parameters, code.co_argcount, args, kwargs, quote)
    if misfit is not None:
        return misfit.quote(quote(args, kwargs))
    taken = inspect.signature(function).parameters.values()
    shown = [p.replace(annotation=p.empty) for p in taken if p.name not in ("self", "cls")]
    error.args = (f"{error}; the call is {name}{inspect.Signature(shown)}",)
    return error


def _reorder(
    by_name: Sequence[str], parameters: Sequence[str], args: Sequence[object]
) -> list[object]:
    """Return the arguments with a tensor, then an axis, in its place; empty if they stand there."""
    moved, places = [*args], list[int]()
    for name, kind in (*((first, "data") for first in by_name[:1]), ("axis", "text")):
        kinds = [*map(_kind_of, moved)]
        at = parameters.index(name) if name in parameters[: len(args)] else len(args)
        if kind in kinds[at + 1 :] and kinds[at] not in ("", kind):
            moved.insert(at, moved.pop(kinds.index(kind, at)))
            places.append(at)
    return moved if places else []


def _kind_of(value: object) -> str:
    """Return "data" for a tensor, a module or a state; "text", "number", or "" for others.

    It looks at types alone, as a value of the user may have side effects.
    """
    values = [value]
    if isinstance(value, dict | list | tuple):
        values = [*(dict.values(value) if isinstance(value, dict) else value)]
    modules = {base.__module__.partition(".")[0] for v in values for base in type(v).__mro__}
    if modules & {"torch", "numpy"}:
        return "data"
    kinds: dict[str, tuple[type, ...]] = {"text": (str,), "number": (int, float)}
    is_of = (kind for kind, t in kinds.items() if all(isinstance(v, t) for v in values))
    return next(is_of, "") if values else ""


def parse_integer(value: object) -> int | None:
    """Return an integer as a plain int; None for a bool, a float, a str and everything else."""
    if isinstance(value, (bool, np.bool_)):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def is_number(value: object) -> bool:
    """Return whether a value is a real number of Python or numpy, and not a bool."""
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def divisors(number: int) -> tuple[int, ...]:
    """Return all divisors in ascending order; beyond 10**12 those with a factor up to 10**6."""
    small = [n for n in range(1, min(math.isqrt(number), MAX_FACTOR) + 1) if number % n == 0]
    return tuple(sorted({*small, *(number // n for n in small)}))


def check_integer(name: str, value: object, *, axis: str | None = None) -> int:
    """Return an integer as a plain int."""
    number = parse_integer(value)
    if number is None:
        line = f"{name} is {format_value(value)}, {article(type(value).__name__)}."
        raise CoordinateError(line, fix=f"pass {name} as an int.", axis=axis, index=value)
    return number


def check_index(axis: str, value: object, size: int) -> int:
    """Return an index along an axis as a plain int."""
    index = check_integer(axis, value, axis=axis)
    if not 0 <= index < size:
        raise CoordinateError(
            f"{axis}={index} is outside the axis.",
            f"{axis} has {size} {'index' if size == 1 else 'indices'}, 0 to {size - 1}.",
            fix=f"{axis}={min(max(index, 0), size - 1)}.",
            axis=axis,
            index=index,
            size=size,
        )
    return index


def check_ranks(ranks: ArrayLike) -> Ints:
    """Return ranks as an int64 array of their shape."""
    try:
        array = np.asarray(ranks)
    except ValueError:
        line = "rows of ranks have unequal lengths."
        raise CoordinateError(line, fix="one call for each row.") from None
    if array.dtype.kind not in "iu" and array.size:
        is_float = array.dtype.kind == "f"
        is_whole = is_float and ((np.abs(array) < 2**31) & (array == np.floor(array))).all()
        fix = "numpy.asarray(ranks, dtype=int)." if is_whole else "integers."
        raise CoordinateError(f"ranks are {array.dtype}, not integers.", fix=fix)
    return array.astype(np.int64, copy=False)


def check_divides(num_ranks: int, num_nodes: int) -> None:
    """Check that ranks divide evenly over nodes."""
    if num_ranks % num_nodes == 0:
        return
    valid = divisors(num_ranks)
    below = max(n for n in valid if n < num_nodes)
    above = next((n for n in valid if n > num_nodes), None)
    nearest = [n for n in (below, above) if n]
    verb = "does" if num_ranks == 1 else "do"
    ranks, nodes = count_noun(num_ranks, "rank"), count_noun(num_nodes, "node")
    line = f"{ranks} {verb} not divide over {nodes}."
    fix = f"{' or '.join(map(str, nearest))} {plural('node', nearest[-1])}."
    raise SpecError(line, fix=fix, world_size=num_ranks, below=below, above=above)
