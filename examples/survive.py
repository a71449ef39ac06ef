r"""Train as train.py does, and go on in the same processes when ranks are lost.

Start each rank with a launcher that does not end all ranks when one dies, for example by hand::

    for rank in 0 1 2 3 4 5 6 7; do
        RANK=$rank WORLD_SIZE=8 MASTER_ADDR=localhost MASTER_PORT=29500 \
            python examples/survive.py --dp 4 --tp 2 --init-method file:///tmp/store &
    done

Kill, stop or cut off some of them. The others form as many whole replicas as they can, and the
losses are those of a run that lost no rank: the global batch and the order of samples stay, and all
ranks go on from a step whose whole state somebody holds. ``mesh.commit()`` in the trainer's step
keeps what is left of a broken collective out of the weights. Ranks left over wait until the next
rank is lost. Start a killed rank again, with the same command: the others admit it after a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import meshkit

if TYPE_CHECKING or __package__:  # examples.survive
    from . import attention, options, text, train
else:  # a script, whose folder is on the path
    import attention
    import options
    import text
    import train


class Trainer(train.Trainer):
    """The tutorial's trainer, at the step that its state has reached."""

    def __init__(
        self,
        mesh: meshkit.Mesh,
        args: options.Options,
        data: text.Windows,
        held: Trainer | None = None,
    ) -> None:
        super().__init__(mesh, args, data)
        self.log: dict[str, list[float]] = {"losses": []}  # a part of the state: one for each step
        mesh.recovery.restore(*self.state, held=held.state if held else None)
        sampler: Any = self.loader.batch_sampler
        epoch, step = divmod(len(self.log["losses"]), len(data) // args.global_batch)
        sampler.load_state_dict({**sampler.state_dict(steps=step), "epoch": epoch})

    @property
    def state(self) -> tuple[Any, ...]:
        """All that a rank needs to go on."""
        return self.model, self.optimizer, self.log


def train_on(
    mesh: meshkit.Mesh, args: options.Options, begin_step: Callable[[int], None] = lambda _: None
) -> tuple[meshkit.Mesh, list[float]]:
    """Run all steps, on the ranks that live; return the last mesh and the loss of each step."""
    data = text.Windows(text.read_text(args.text).to(mesh.device), args.seq)
    trainer: Trainer | None = None
    losses: list[float] = []
    while len(losses) < args.steps and not mesh.recovery.is_over:
        try:
            if not mesh.inside:  # a spare, which may hold the state that another rank lacks
                mesh.recovery.restore(*(trainer.state if trainer else ()))
                mesh = mesh.recover(step=len(losses))
                continue
            with mesh.guard(timeout=args.timeout):
                if trainer is None or trainer.mesh is not mesh:
                    trainer = Trainer(mesh, args, data, held=trainer)
                    losses = trainer.log["losses"]
                begin_step(len(losses))
                losses.append(trainer.step()[0])
            if len(losses) < args.steps:
                mesh = mesh.admit(step=len(losses))
        except meshkit.CollectiveError as error:
            mesh = mesh.recover(step=len(losses))
            if mesh.rank == 0:
                print(f"{error}\n{mesh.recovery}", flush=True)
    return mesh, losses


def main(argv: Sequence[str] | None = None) -> list[float]:
    """Join the job, build the mesh and train; return the loss of each step."""
    args = parse(argv)
    meshkit.init(device=args.device, seed=args.seed, init_method=args.init_method)
    try:
        mesh, losses = train_on(meshkit.build_mesh(dp=args.dp, sp=args.sp, tp=args.tp), args)
        mesh.close()
        if mesh.rank == 0:
            print("losses", *(f"{loss:.4f}" for loss in losses), flush=True)
    finally:
        meshkit.shutdown()
    return losses


def parse(argv: Sequence[str] | None) -> options.Options:
    """Return the options of the tutorial, and those of this example."""
    parser = options.trainer_parser(attention.KINDS)
    parser.set_defaults(uneven=True)  # any dp keeps the global batch
    parser.add_argument("--timeout", type=float, default=60, help="seconds that one step may hang")
    parser.add_argument("--init-method", help="the store, for example file:///shared/store")
    return train.parse(argv, parser)


if __name__ == "__main__":
    main()
