"""Train for some steps, and continue after the last one on any number of ranks.

Start it with ``torchrun --nproc-per-node 4 sampler_resume.py``, then on 2 ranks.
"""

from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

import meshkit

CHECKPOINT, STEPS = Path("checkpoint.pt"), 4  # steps of one run


def main() -> None:
    """Run the next steps, and print the samples that this rank reads."""
    device = meshkit.init(seed=0).device
    data = torch.randn(64, 8)
    with meshkit.build_mesh(dp=-1) as mesh:
        model = torch.nn.Linear(8, 8).to(device)
        ddp = DistributedDataParallel(model, process_group=mesh.gradient_group())
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        plan = mesh.batch(global_batch=8, micro_batch=2)
        sampler = mesh.sampler(data, plan, shuffle=True, seed=1)
        if CHECKPOINT.exists():
            state = torch.load(CHECKPOINT, map_location=device, weights_only=True)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            sampler.load_state_dict(state["sampler"])
        if sampler.steps == 0:  # the state is of the end of an epoch
            sampler.set_epoch(sampler.epoch + 1)
        batches = iter(sampler)  # or iter(DataLoader(data, batch_sampler=sampler))
        steps = min(STEPS, sampler.steps)
        for step in range(steps):
            read = []
            for micro in sampler.micro_batches(step):
                samples = next(batches)
                read += samples
                x = data[samples].to(device)
                with plan.sync_on_last(ddp, micro):
                    ((ddp(x) - x).square().mean() * micro.weight).backward()
            optimizer.step()
            optimizer.zero_grad()
            print(f"rank {mesh.rank} of {mesh.layout.num_ranks} step {step} samples {read}")
        if mesh.rank == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "sampler": sampler.state_dict(steps=steps)}, CHECKPOINT)
        mesh.barrier()  # no rank leaves before the file is there
    meshkit.shutdown()


if __name__ == "__main__":
    main()
