"""Draw from named random streams, one for each coordinate, with torch's global generators.

::

    outer numbers   a b . . . c d           with mesh.rng("dropout"): the stream continues from
    "dropout"           0 1 2     3 4       its last number; the outer numbers too
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from ..call import quotes_call
from ..errors import MeshkitError, SpecError
from ..groups.live_mesh import LiveMesh
from ..launch.job import current_job
from ..layout.layout import Layout
from ..text import article
from .seeds import compute_seed, parse_stream_key, select_coordinate, select_streams, stream_key

# device type to the state of its generator, uint8 (bytes,) on the cpu; and SIZES
State = dict[str, Tensor]
SIZES = "sizes"  # of the axes along which a stream varies, when it was drawn from: int64 (axes,)


class RandomStreams:
    """The random streams of one rank: ``with mesh.rng("dropout", vary=("dp", "tp")):``.

    Inside the ``with``, torch's global generators of the cpu and of the current device draw from
    the stream. After the ``with``, also after an error, the states of the generators are restored,
    and the state of the stream is kept for the next ``with``. Generators of Python, numpy and other
    devices are unchanged, and so are generators that are passed as ``generator=``.

    The current device must not change inside. The generators belong to the process, so only one
    thread at a time may be inside. Local. Cost: two reads and two writes of a generator state.

    Activation checkpointing: if the ``with`` is around ``torch.utils.checkpoint.checkpoint``, torch
    recomputes with the same numbers. If the ``with`` is inside the checkpointed function, the
    stream has advanced before torch recomputes: pass ``context_fn=mesh.rng.replay``.

    A view has its own streams, with the numbers of the mesh for equal name, axes and coordinates.

    A rank outside the mesh may draw from streams that vary along no axis.

    A copy, also one that was pickled, goes on from the same states, with streams of its own.
    """

    def __init__(
        self, layout: Layout, rank: int, device_type: str, base: Callable[[], int]
    ) -> None:
        self._layout, self._rank, self._base = layout, rank, base
        modules = {"cpu": torch.random}
        if device_type != "cpu":
            modules[device_type] = torch.get_device_module(device_type)
        self._modules: Mapping[str, Any] = modules
        self._states: dict[str, State] = {}
        self._seeds: dict[str, int] = {}  # the seed with which this process began a stream
        self._open: list[str] = []

    def __reduce__(self) -> tuple[object, ...]:
        """Become streams that go on from the same states, for a copy of a model that keeps them."""
        device_type = [*self._modules][-1]  # the cpu stands first
        own = self._layout, self._rank, device_type, self._base
        return RandomStreams, own, (self.state_dict(), dict(self._seeds))

    def __setstate__(self, streams: tuple[dict[str, State], dict[str, int]]) -> None:
        self._states, self._seeds = streams

    @quotes_call("mesh.rng")
    def __call__(
        self, name: str, *, vary: str | tuple[str, ...] = (), seed: int | None = None
    ) -> AbstractContextManager[None]:
        """Draw from a stream inside the ``with``. See :class:`RandomStreams`.

        Args:
            name: the name of the stream, without blanks: ``"dropout"``, ``"init"``.
            vary: the axes along which streams differ, ``"dp tp"`` or ``("dp", "tp")``; along all
                other axes, ranks draw the same.
            seed: a new stream begins with ``stream_seed(seed, name, **coordinate)``; None is the
                seed given to ``meshkit.init``, or 0. A stream that has begun continues.

        Raises:
            SpecError: if name, ``vary`` or seed is invalid, or if the stream began with another
                seed.
            UnknownAxisError: if the mesh has no such axis.
            CoordinateError: on a rank outside the mesh, if ``vary`` names an axis.
            MeshkitError: when an open stream is entered again, which would repeat its numbers; when
                a stream is left before one that was entered later, as a generator function may do.
        """
        if not isinstance(name, str) or name.split() != [name]:  # blanks separate the coordinate
            line = f"the name {name!r} of a stream is invalid."
            raise SpecError(line, fix="a str without blanks, for example 'dropout'.")
        coordinate = select_coordinate(self._layout, self._rank, vary)
        number = compute_seed(self._base() if seed is None else seed, name, coordinate)
        key = stream_key(name, coordinate)
        if seed is not None and self._seeds.get(key, number) != number:
            line = f"the stream {key!r} began with another seed."
            raise SpecError(line, fix="leave out seed to continue it, or use another name.")
        return self._draw(key, number)

    def state_dict(self) -> dict[str, State]:
        """Return the states of this rank's streams: ``{"dropout dp=1 tp=0": {"cpu": bytes}}``.

        Local. Ranks that share a coordinate hold the same streams. Save the states of all ranks,
        for example in a file for each, and load them merged, ``{**a, **b}``. Beside the bytes of
        each generator, a stream along axes has their sizes. All are copies on the cpu.
        """
        if self._open:
            self._keep(self._open[-1], self._read_generators())
        return {key: _copy(state) for key, state in self._states.items()}

    @quotes_call("mesh.rng.load_state_dict", by_name=("states",))
    def load_state_dict(self, states: Mapping[str, Mapping[str, Tensor]], /) -> None:
        """Restore the streams of this rank's coordinates, on this mesh or on another one. Local.

        A stream begins anew if the states hold none of its name and axes, or if the saved mesh did
        not have this coordinate, as after dp has grown.

        Args:
            states: from :meth:`state_dict`, merged from all ranks, or of this rank alone.

        Raises:
            SpecError: if the states lack a stream of this coordinate that a rank of the saved mesh
                had, for example because one rank saved its own; if they are invalid. Nothing is
                changed then.
            MeshkitError: if a stream is open.
        """
        if self._open:
            line = f"the stream {self._open[-1]!r} is open."
            raise MeshkitError(line, fix="call load_state_dict before or after the with.")
        _check_states(states, self._read_generators())
        inside = self._rank in self._layout
        coordinate = self._layout.coordinate(self._rank) if inside else {}
        sizes = {key: [*map(int, state.get(SIZES, ()))] for key, state in states.items()}
        own = select_streams(sizes, coordinate)
        self._states = {key: _copy(states[key]) for key in own}
        self._seeds = {}

    def replay(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Return the contexts for streams that are entered inside a checkpointed function. Local.

        ``checkpoint(block, x, use_reentrant=False, context_fn=mesh.rng.replay)``: the recomputation
        starts each stream from the state before the forward, and does not advance the stream.
        """
        return nullcontext(), self._rewind(dict(self._states), dict(self._seeds))

    @contextmanager
    def _rewind(self, states: dict[str, State], seeds: dict[str, int]) -> Iterator[None]:
        current = self._states, self._seeds, self._open
        self._states, self._seeds, self._open = states, seeds, []
        try:
            yield
        finally:
            self._states, self._seeds, self._open = current

    @contextmanager
    def _draw(self, key: str, seed: int) -> Iterator[None]:
        if key in self._open:
            line = f"the stream {key!r} is open, and would draw the same numbers twice."
            raise MeshkitError(line, fix="another name for the inner stream.")
        outer = self._read_generators()
        if self._open:  # so a state_dict inside has the latest state of the outer stream
            self._keep(self._open[-1], outer)
        try:
            self._set_generators(self._states.get(key, {}), seed)
            if key not in self._states:
                self._seeds[key] = seed
            self._open.append(key)
            try:
                yield
            finally:
                self._leave(key)
        finally:
            self._set_generators(outer, seed)

    def _leave(self, key: str) -> None:
        """Keep the state of the stream, unless streams were left out of order."""
        inner = self._open[-1]
        self._open.remove(key)
        if inner != key:
            line = f"the stream {key!r} is left while {inner!r}, entered later, is open."
            evidence = "It is not known which numbers belong to which stream."
            raise MeshkitError(line, evidence, fix="move the yield out of the with.")
        self._keep(key, self._read_generators())

    def _keep(self, key: str, state: State) -> None:
        """Keep the state of a stream, with the sizes of its axes."""
        parsed = parse_stream_key(key)
        sizes = [self._layout.size(axis) for axis in parsed[1]] if parsed else []
        self._states[key] = state | ({SIZES: torch.tensor(sizes)} if sizes else {})

    def _read_generators(self) -> State:
        """Return the states of the global generators."""
        return {kind: module.get_rng_state() for kind, module in self._modules.items()}

    def _set_generators(self, state: State, seed: int) -> None:
        """Set the global generators to a state, or to the seed if they have no state."""
        for kind, module in self._modules.items():
            if kind in state:
                module.set_rng_state(state[kind])
            elif kind == "cpu":
                torch.default_generator.manual_seed(seed)  # torch.manual_seed seeds every device
            else:
                module.manual_seed(seed)  # seeds the current device only


def base_seed(built: int | None) -> int:
    """Return the seed of the current job; without a job, the seed of the mesh's own job; or 0."""
    job = current_job()
    return (built if job is None else job.seed) or 0


def _check_states(states: object, current: State) -> None:
    """Raise if states are invalid, or from generators that this torch does not have."""
    if not isinstance(states, Mapping):
        line = f"the states are {article(type(states).__name__)}, not a dict."
        raise SpecError(line, fix="the result of mesh.rng.state_dict(), or several of them merged.")
    for key, state in states.items():
        parsed = parse_stream_key(key)
        kinds = state if parsed and isinstance(state, Mapping) else {"?": None}
        known = current | {SIZES: torch.tensor([*parsed[1].values()])} if parsed else {}
        wrong = [kind for kind in kinds if not _fits(kinds[kind], known.get(kind))]
        if wrong:
            raise SpecError(
                f"the state {key!r} of {wrong[0]!r} is not a state of this rank's generator.",
                "States are uint8 tensors, by the name of a stream and the type of a device.",
                fix="the result of mesh.rng.state_dict() with the same torch and device type.",
            )


def _fits(state: object, current: Tensor | None) -> bool:
    if not isinstance(state, Tensor) or current is None:
        return isinstance(state, Tensor) and state.dtype == torch.uint8
    return state.dtype == current.dtype and state.shape == current.shape


def _copy(state: Mapping[str, Tensor]) -> State:
    return {kind: tensor.to("cpu", copy=True) for kind, tensor in state.items()}


@quotes_call("mesh.seed")
def seed(  # noqa: D417  # self
    self: LiveMesh, base: int | None = None, *, vary: str | tuple[str, ...] = ()
) -> int:
    """Return the seed of this rank: distinct along the axes of ``vary``, equal along others.

    Local; no generator changes. It is :func:`meshkit.stream_seed` of the base and this rank's
    coordinate along ``vary``, so it stays the same when another axis grows.

    Args:
        base: any int; None is the seed of ``meshkit.init``, also the number that it drew for
            ``"shared"``, or 0 without one.
        vary: the axes along which seeds differ; empty means that all ranks have the same.

    Returns:
        An int from 0 to 2**63 - 1, valid for every generator of torch. On fewer than 2**13
        ranks its low 32 bits are distinct too: ``np.random.seed(mesh.seed() % 2**32)``.

    Example:
        >>> mesh.seed(7, vary=("dp",)) == meshkit.stream_seed(7, dp=2)
        True
    """
    number = base_seed(self._proposal.job.seed) if base is None else base
    layout, rank = self._groups.plan.layout, self._groups.rank
    if isinstance(base, str) and base in layout.axes:
        raise SpecError("a seed varies along axes, and its base is an int.", fix=f"vary={base!r}.")
    return compute_seed(number, "", select_coordinate(layout, rank, vary))
