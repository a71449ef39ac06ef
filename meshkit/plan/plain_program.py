"""Write the program of plain torch that a mesh amounts to: groups, samples and a training loop.

The program imports torch and Python's library only. Its parts are the text below, with the names,
sizes and formulas of one mesh in them::

    coordinate, list_groups, make_groups          the layout and the group plan
    data_index, micro_batches, shuffled           the batch plan and the sampler
    main, train                                   init, DDP, accumulation
"""

from __future__ import annotations

from collections.abc import Iterable
from string import Template

from ..data.batch import BatchPlan
from ..errors import VERSION
from ..layout.axes import Axes, gradient_axes
from ..layout.group_plan import GroupPlan
from ..layout.layout import Layout
from ..text import Ints

ALONE = "rank"  # the name of the group of one rank, which axes that the mesh lacks have
MAX_LINE = 100  # characters of a line with a comment
NEEDS_ORDER = "It needs torch 2.12 or later: before, new_group sorts the ranks of a group.\n"

HEAD = Template('''\
"""The mesh $sizes in plain torch, as meshkit $version makes it.

    torchrun --nproc-per-node $ranks plain.py

Any launcher will do that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; with GPUs LOCAL_RANK.
$needed
Not here: ranks compare their requests before a group exists; missing ranks and hangs are named
(guard, barrier, agree); batches and gradients are checked; tensors move by patterns; seeds follow
the coordinate, and those of samples their position; a job resumes on another mesh (state_dict), and
goes on without a lost rank (recover).
"""

$imports

# The size of each axis, from the outermost to the innermost:
# rank = $rank
SIZES = {$mapping}
WORLD_SIZE = $ranks


def coordinate(rank):
    """Return the index of a rank along each axis."""
    return {
$coordinate
    }


def list_groups(*axes):
    """Return the ranks of all groups over some axes, a row for each group.

    The ranks of a row differ in these axes only, and the last of them varies fastest.
    """
    names = list(SIZES)
    inner = [names.index(axis) for axis in axes]
    outer = [dim for dim in range(len(names)) if dim not in inner]
    grid = torch.arange(WORLD_SIZE).reshape(*SIZES.values())
    size = math.prod(SIZES[axis] for axis in axes)
    return grid.permute(*outer, *inner).reshape(-1, size).tolist()


def make_groups(rank):
    """Make the process groups of the mesh; return those of this rank by their axes.

    Each rank makes all groups in one order, also those of other ranks: torch numbers them.
    """

    def make(description, rows, **options):
        for ranks in rows:
            group = dist.new_group(ranks, group_desc=description, **options)
            if rank in ranks:
                own = group
        return own

    groups = {}  # axes that are absent or of size 1 have the group of this rank alone
$groups
    return groups
''')

SAMPLES = Template('''

# One order of samples for any mesh. A step takes the next GLOBAL_BATCH of them, in micro batches,
# which the DATA_SIZE data indices take in turn. Ranks of one data index read the same samples.
GLOBAL_BATCH, MICRO_BATCH, DATA_SIZE = $global_batch, $micro_batch, $data_size


def data_index(rank):
    """Return which share of the samples a rank reads."""
    return $data_index


def count_steps(length, tail="keep"):
    """Return the steps of an epoch; the tail is the use of samples that do not fill the last."""
    whole, left = divmod(length, GLOBAL_BATCH)
    return whole + (left > 0 and tail != "drop")


def micro_batches(index, length, step, epoch=0, shuffle=False, seed=0, tail="keep"):
    """Yield the samples of each micro batch of a data index in a step, its weight, and is_last.

    The weighted mean losses, averaged over all data indices, add up to the mean of the step. All
    data indices run equally many micro batches: in a short last step, some are fillers of weight 0.
    """
    first = step * GLOBAL_BATCH
    total = min(GLOBAL_BATCH, length - first) if tail == "keep" else GLOBAL_BATCH
    num_batches = -(-total // MICRO_BATCH)
    rounds = -(-num_batches // DATA_SIZE)
    for micro_step in range(rounds):
        number = micro_step * DATA_SIZE + index
        is_filler = number >= num_batches
        begin = (index % num_batches if is_filler else number) * MICRO_BATCH
        end = min(begin + MICRO_BATCH, total)
        positions = [position % length for position in range(first + begin, first + end)]
        samples = [shuffled(p, length, seed, epoch) for p in positions] if shuffle else positions
        weight = 0.0 if is_filler else DATA_SIZE * len(samples) / total
        yield samples, weight, micro_step == rounds - 1


def shuffled(position, length, seed, epoch):
    """Return the sample at a position of the shuffled order, without a list of all samples.

    A Feistel network permutes 0 to 2**bits - 1; what is no sample goes through it again.
    """
    keys = struct.unpack("<8Q", hashlib.blake2b(f"{seed} {epoch} {length}".encode()).digest())
    bits = max((length - 1).bit_length(), 6)
    low = bits // 2
    masks = (1 << (bits - low)) - 1, (1 << low) - 1
    while True:
        halves = [position >> low, position & masks[1]]
        for number, key in enumerate(keys):
            half = number % 2
            halves[half] ^= scramble(halves[1 - half] + key) & masks[half]
        position = halves[0] << low | halves[1]
        if position < length:
            return position


def scramble(word):
    """Return a hash of 64 bits: the finalizer of SplitMix64."""
    word %= 2**64
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
    return word ^ word >> 31
''')

TRAIN = Template('''

def train(rank, groups, device, length=512, epochs=1, shuffle=True, seed=0, tail="keep"):
    """Train a model of your own in place of this one; return the mean loss of each step."""
    torch.manual_seed(0)  # equal data and weights on all ranks
    inputs = torch.randn(length, 8)
    targets = inputs.sum(1, keepdim=True)
    averaged = groups["$gradients"]  # gradients and losses are averaged over it
    model = DistributedDataParallel(torch.nn.Linear(8, 1).to(device), process_group=averaged)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    losses = []
    for epoch, step in itertools.product(range(epochs), range(count_steps(length, tail))):
        total = torch.zeros((), device=device)
        batches = micro_batches(data_index(rank), length, step, epoch, shuffle, seed, tail)
        for samples, weight, is_last in batches:
            x, y = inputs[samples].to(device), targets[samples].to(device)
            # DDP communicates in the backward of the last micro batch only
            with contextlib.nullcontext() if is_last else model.no_sync():
                loss = (model(x) - y).square().mean() * weight
                loss.backward()
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        total /= averaged.size()
        dist.all_reduce(total, group=averaged)
        losses.append(total.item())
        if rank == 0:
            print(f"step {len(losses) - 1}  loss {losses[-1]:.4f}")
    return losses
''')

MAIN = Template('''

def main():
    """Join the job, make the groups, and $work."""
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")  # reads the environment
    if dist.get_world_size() != WORLD_SIZE:
        raise SystemExit(f"{dist.get_world_size()} ranks were started, the mesh has {WORLD_SIZE}")
    rank = dist.get_rank()
    groups = make_groups(rank)
    $call
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
''')


def write_program(plan: GroupPlan, batch: BatchPlan | None, data: Axes) -> str:
    """Return the text of the program, for ranks that are numbered as their positions.

    Args:
        plan: the layout and its groups, that of :func:`averaged_axes` included.
        batch: the batch of a step; None leaves out samples and training.
        data: the axes that divide the samples.
    """
    layout = plan.layout
    modules, call, work = ["math", "os"], "print(rank, coordinate(rank), *groups)", "show them"
    third, blocks = "", []
    if batch is not None:
        modules += ["contextlib", "hashlib", "itertools", "struct"]
        call, work = "train(rank, groups, device)", "train"
        third = "\nfrom torch.nn.parallel import DistributedDataParallel"
        samples = SAMPLES.substitute(
            global_batch=batch.global_batch,
            micro_batch=batch.micro_batch,
            data_size=batch.dp,
            data_index=_mixed_radix(
                [(_index(layout, axis), layout.sizes[axis]) for axis in data if axis in layout.axes]
            ),
        )
        blocks = [samples, TRAIN.substitute(gradients=_name(plan, averaged_axes(plan, data)))]
    imports = "\n".join(sorted(f"import {module}" for module in modules))
    head = HEAD.substitute(
        sizes=layout.sizes_text,
        version=VERSION,
        needed="" if all(_are_sorted(step.members) for step in plan.steps) else NEEDS_ORDER,
        ranks=layout.num_ranks,
        imports=f"{imports}\n\nimport torch\nimport torch.distributed as dist{third}",
        rank=_mixed_radix([*layout.sizes.items()]),
        mapping=", ".join(f'"{axis}": {size}' for axis, size in layout.sizes.items()),
        coordinate="\n".join(f'        "{axis}": {_index(layout, axis)},' for axis in layout.axes),
        groups="\n".join(_group_lines(plan)),
    )
    return "".join([head, *blocks, MAIN.substitute(call=call, work=work)]).rstrip()


def averaged_axes(plan: GroupPlan, data: Axes) -> Axes:
    """Return the axes over which gradients are averaged: by their names, and those of the data."""
    usual = gradient_axes(plan.layout.sizes)
    if {*data} & {*plan.layout.axes} <= {*usual}:
        return usual
    return tuple(axis for axis in plan.layout.axes if axis in (*usual, *data))


def _index(layout: Layout, axis: str) -> str:
    """Return the formula of the index of a rank along an axis."""
    ((size, stride),) = layout.strides(axis) or ((1, 1),)
    if size == 1:
        return "0"
    outer = "rank" if stride == 1 else f"rank // {stride}"
    return outer if size * stride == layout.num_ranks else f"{outer} % {size}"


def _mixed_radix(digits: Iterable[tuple[str, int]]) -> str:
    """Return the formula of a number from its digits, each with its size, the highest first."""
    text = ""
    for digit, size in digits:
        if size > 1:
            higher = f"({text})" if " " in text else text
            text = f"{higher} * {size} + {digit}" if text else digit
    return text or "0"


def _name(plan: GroupPlan, axes: Axes) -> str:
    """Return the name of a group in the program: its axes, or others that have the same group."""
    key = plan.group_key(axes)
    same = [names for names in plan.axis_sets if plan.keys[names] == key]
    return " ".join(axes if axes in same else same[0]) or ALONE


def _group_lines(plan: GroupPlan) -> list[str]:
    """Return the lines that make the groups, in the order of the mesh, and name them."""
    rows = {plan.keys[step.axes]: step for step in plan.steps}
    lines = []
    for axes, key in plan.keys.items():
        first = rows[key].axes
        same = f'groups["{" ".join(first) or ALONE}"]'
        value, comment = _creation(plan, axes, rows[key].members) if axes == first else (same, "")
        line = f'    groups["{" ".join(axes) or ALONE}"] = {value}'
        commented = f"{line}  # {comment}"
        lines.append(commented if comment and len(commented) <= MAX_LINE else line)
    return lines


def _creation(plan: GroupPlan, axes: Axes, members: Ints) -> tuple[str, str]:
    """Return the expression that makes all groups over some axes, and a comment."""
    names = " ".join(axes) or ALONE
    description = f'"meshkit {"mesh" if axes == plan.layout.axes else names}"'
    if len(members) == 1 and members[0].tolist() == [*range(plan.layout.num_ranks)]:
        return "dist.group.WORLD", "all ranks in order"
    if members.shape[1] == 1:
        return f"make({description}, [[rank]], use_local_synchronization=True)", "this rank alone"
    order = "" if _are_sorted(members) else ", sort_ranks=False"
    axes_text = ", ".join(f'"{axis}"' for axis in axes)
    rows = [f"[{_shorten(map(str, row[:4].tolist()))}]" for row in members[:4]]
    return f"make({description}, list_groups({axes_text}){order})", _shorten(rows)


def _are_sorted(members: Ints) -> bool:
    """Return whether the ranks of each row ascend."""
    return bool((members[:, 1:] > members[:, :-1]).all())


def _shorten(texts: Iterable[str]) -> str:
    """Return up to three of the texts, and dots for more."""
    first = [*texts]
    return ", ".join([*first[:3], *["..."] * (len(first) > 3)])
