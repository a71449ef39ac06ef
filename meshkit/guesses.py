"""First guesses: calls in the words of other libraries, each answered with the call to type here.

::

    init(host="a", port=29500)              init(init_method='tcp://a:29500')
    spawn(train, nprocs=4, join=True)       spawn(train, world_size=4)
    build_mesh("cuda", (4, 2))              meshkit.init(device='cuda'), then build_mesh(dp=4, tp=2)

A fix keeps every value that has a place in it. A line of evidence names each option that has none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from .errors import BatchError, MeshkitError, SpecError
from .layout.axes import INIT_OPTIONS, MESH_OPTIONS, known_name, option_owner, standard_axis

Quote = Callable[[Sequence[object], Mapping[str, object]], object]

INIT_PARAMETERS = INIT_OPTIONS | {"backend", "timeout", "arrival_timeout"}
TORCH = ("backend", "init_method", "timeout", "world_size", "rank")  # of init_process_group
COLOSSALAI = ("rank", "world_size", "host", "port", "backend", "local_rank", "seed", "verbose")
HOSTS = ("host", "master_addr", "hostname")
PORTS = ("port", "master_port")
PORT = 29500  # torch's usual one
ABSENT = {
    "spawn": {
        "join": "spawn always waits for its ranks, so it has no join.",
        "daemon": "no rank of spawn outlives this process, so spawn has no daemon.",
        "start_method": "spawn starts its ranks from a fork server, so it has no start_method.",
    },
    "init": {
        "store": "init opens a store of its own, at init_method.",
        "config": "init reads no config.",
        "group_name": "init gives the default group no name.",
        "pg_options": "init passes no pg_options.",
    },
}
SHAPES = {1: ("dp",), 2: ("dp", "tp"), 3: ("pp", "dp", "tp")}  # axes of a shape without names
DEVICE_MESH = {"device_type", "mesh_shape", "mesh_dim_names", "backend_override"}


def misfit_error(
    name: str,
    parameters: Collection[str],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    quote: Quote,
) -> MeshkitError | None:
    """Return the error for arguments that do not fit a call; None if their names say nothing."""
    if name == "build_mesh":
        return device_mesh_error(args, kwargs)
    guess = Guess(name, parameters, kwargs)
    if name == "init":
        guess.take_positions(args)
        guess.take_address()
        args = ()
    guess.rename()
    if not guess.lines:
        return None
    kind = BatchError if name in ("mesh.batch", "BatchPlan.solve") else SpecError
    return kind(*guess.evidence, fix=guess.fix(args, quote))


def launch_error(
    args: Sequence[object], kwargs: Mapping[str, object], quote: Quote
) -> MeshkitError:
    """Return the error for ``meshkit.launch(...)``, a call of ColossalAI."""
    guess = Guess("init", INIT_PARAMETERS, kwargs)
    guess.take_positions(args)
    guess.take_address()
    guess.rename()
    summary = "meshkit.launch is a package; meshkit.init joins the job of every launcher."
    return SpecError(summary, *guess.evidence, fix=guess.fix((), quote))


class Guess:
    """The arguments of a call in the words of another library, and the words here."""

    def __init__(
        self, name: str, parameters: Collection[str], kwargs: Mapping[str, object]
    ) -> None:
        self.absent = ABSENT.get(name, {})
        self.parameters = parameters
        self.fitting = {n: value for n, value in kwargs.items() if n in parameters}
        self.others = {n: value for n, value in kwargs.items() if n not in parameters}
        self.elsewhere: dict[str, list[str]] = {}  # other calls, with their arguments
        self.lines: list[str] = []  # each names what has another name, or another place
        self.unknown: list[str] = []  # options that mean nothing here
        self.is_clear = True  # whether the fix has a place for every value

    @property
    def evidence(self) -> list[str]:
        """The lines of the error, those that name an unknown option last."""
        unknown = [f"there is no argument {name} here." for name in self.unknown]
        return [*self.lines, *unknown]

    def fix(self, args: Sequence[object], quote: Quote) -> str:
        """Return the call to type; "" if a value has no place in it."""
        calls = [f"{owner}({', '.join(texts)})" for owner, texts in self.elsewhere.items()]
        return f"{', and '.join([str(quote(args, self.fitting)), *calls])}." * self.is_clear

    def take_positions(self, args: Sequence[object]) -> None:
        """Name the positional arguments of ``init``, as torch and ColossalAI order them."""
        if not args:
            return
        self.lines.append("init takes its arguments by name.")
        names: tuple[str, ...] = COLOSSALAI
        if isinstance(args[0], str):
            names = TORCH["://" in args[0] :]
        elif isinstance(args[0], Mapping):  # ColossalAI had a config before the rank
            names = ("config", *COLOSSALAI)
        fits = len(args) == 1 or names is not TORCH or "://" in str(args[1])
        if not fits or len(args) > len(names) or not isinstance(args[0], str | int | Mapping):
            self.lines.append(f"Its arguments are {', '.join(sorted(self.parameters))}.")
            self.is_clear = False
            return
        for name, value in zip(names, args, strict=False):
            held = self.fitting if name in self.parameters else self.others
            held.setdefault(name, value)

    def take_address(self) -> None:
        """Put the host and the port of rank 0 into one URL."""
        hosts = [self.others.pop(name) for name in HOSTS if name in self.others]
        ports = [self.others.pop(name) for name in PORTS if name in self.others]
        if not hosts and not ports:
            return
        self.lines.append("the host and the port of rank 0 are one URL here, init_method.")
        if not ports:
            self.lines.append(f"No port is given; {PORT} is torch's usual one.")
        host = str(hosts[0]) if hosts else "<host of rank 0>"
        host = f"[{host}]" if ":" in host and not host.startswith("[") else host
        self.is_clear = self.is_clear and "init_method" not in self.fitting
        self.fitting.setdefault("init_method", f"tcp://{host}:{ports[0] if ports else PORT}")

    def rename(self) -> None:
        """Give each other option its name here, or the call that has it."""
        for option, value in self.others.items():
            if new := known_name(option, self.parameters):
                self.lines.append(f"{option} is called {new} here.")
                self.fitting.setdefault(new, value)
            elif owner := option_owner(name := standard_axis(option) or option):
                self.lines.append(f"{option} is an option of {owner}.")
                self.elsewhere.setdefault(owner, []).append(f"{name}={value!r}")
            elif option in self.absent:
                self.lines.append(self.absent[option])
            else:
                self.unknown.append(option)


def device_mesh_error(args: Sequence[object], kwargs: Mapping[str, object]) -> SpecError | None:
    """Return the error if the arguments of ``build_mesh`` are those of ``init_device_mesh``."""
    is_device = bool(args) and isinstance(args[0], str)
    if len(args) < 2 and not is_device and not DEVICE_MESH & kwargs.keys():
        return None
    shapes = [v for v in (*args, kwargs.get("mesh_shape")) if isinstance(v, Sequence)]
    shape = next((shape for shape in shapes if not isinstance(shape, str)), (4, 2))
    names = kwargs.get("mesh_dim_names") or SHAPES.get(len(shape), ())
    sizes = zip(names if isinstance(names, Sequence) else (), shape, strict=False)
    given = {name: value for name, value in kwargs.items() if name in MESH_OPTIONS}
    axes = ", ".join([f"{axis}={size}" for axis, size in sizes] or ["dp=4", "tp=2"])
    options = "".join(f", {name}={value!r}" for name, value in given.items())
    device = args[0] if is_device else kwargs.get("device_type")
    first = f"meshkit.init(device={device!r}), then " if isinstance(device, str) else ""
    override = "backend_override is backend= here, by the name of an axis: {'tp': 'gloo'}."
    return SpecError(
        "these are the arguments of torch's init_device_mesh.",
        "build_mesh takes the size of each axis by its name, and the device is that of the job.",
        *([override] if kwargs.get("backend_override") is not None else []),
        fix=f"{first}build_mesh({axes}{options}).",
    )
