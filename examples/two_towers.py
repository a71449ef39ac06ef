"""Train an encoder on some ranks and a decoder on others, with gradients through the move.

    torchrun --nproc-per-node 8 examples/two_towers.py --encoder 4 --dp 2 --tp 2

The encoder stands on the first ranks of the job with plain data parallelism, and the decoder on
the last ones with dp and tp. ``encoder.redistribute(..., to=decoder)`` moves the activations to
the ranks of the decoder, and the backward moves their gradient back::

    ranks 0-3  encoder  dp=4        each has a quarter of the batch
    ranks 4-7  decoder  dp=2 tp=2   each has half of the batch, and half of the hidden features

On fewer ranks the two overlap: with ``--encoder 1 --dp 1 --tp 1`` one process runs both. Losses and
weights do not depend on the meshes.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import meshkit

FEATURES, WIDTH, HIDDEN, BATCH = 12, 8, 16, 16


def draw(name: str, rows: int, columns: int) -> Tensor:
    """Return the whole weight of a name, (rows, columns), equal on every rank."""
    generator = torch.Generator().manual_seed(meshkit.stream_seed(0, name))
    return torch.randn(rows, columns, generator=generator, dtype=torch.float64) * columns**-0.5


def samples(numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the inputs and the targets of some samples, (samples, FEATURES) each."""
    rows = [draw(f"sample {number}", 1, FEATURES)[0] for number in numbers]
    x = torch.stack(rows)
    return x, x.flip(1).sin()


class Encoder(nn.Module):
    """One layer; every rank of dp has the whole weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(draw("encoder", WIDTH, FEATURES))

    def forward(self, x: Tensor) -> Tensor:
        """Map (samples, FEATURES) to (samples, WIDTH)."""
        return F.linear(x, self.weight).tanh()


class Decoder(nn.Module):
    """Two layers, whose hidden features are cut over tp."""

    def __init__(self, mesh: meshkit.Mesh) -> None:
        super().__init__()
        self.mesh = mesh
        up, down = draw("up", HIDDEN, WIDTH), draw("down", FEATURES, HIDDEN)
        self.up = nn.Parameter(mesh.redistribute(up, "h i =tp -> h/tp i").clone())
        self.down = nn.Parameter(mesh.redistribute(down, "o h =tp -> o h/tp").clone())

    def forward(self, x: Tensor) -> Tensor:
        """Map (samples, WIDTH) to (samples, FEATURES)."""
        y = F.linear(F.linear(x, self.up).tanh(), self.down)
        return self.mesh.redistribute(y, "b o +tp -> b o =tp")


class Towers:
    """The models of this rank, one or both, and their optimizer."""

    def __init__(self, encoder: meshkit.Mesh, decoder: meshkit.Mesh) -> None:
        self.meshes = encoder, decoder
        self.encoder = Encoder() if encoder.inside else None
        self.decoder = Decoder(decoder) if decoder.inside else None
        self.models = [model for model in (self.encoder, self.decoder) if model is not None]
        weights = [weight for model in self.models for weight in model.parameters()]
        self.optimizer = torch.optim.SGD(weights, lr=0.5)

    def step(self, step: int) -> Tensor | None:
        """Run one optimizer step; return the loss before it, equal on all ranks of both meshes."""
        encoder, decoder = self.meshes
        x = None
        if self.encoder is not None:
            x = self.encoder(samples(numbers_of(encoder, step))[0])
        # the ranks of tp go on with different hidden features: *tp sums their gradients
        x = encoder.redistribute(x, "b/dp d -> b/dp d *tp", to=decoder)
        part = None
        if self.decoder is not None:
            targets = samples(numbers_of(decoder, step))[1]
            part = (self.decoder(x) - targets).square().sum() / BATCH
            part.backward()
        else:
            x.sum().backward()  # an empty tensor, by which the gradient comes back
        for model, mesh in zip((self.encoder, self.decoder), self.meshes, strict=True):
            for weight in () if model is None else model.parameters():
                if weight.grad is not None:
                    weight.grad = mesh.redistribute(weight.grad, "o i +dp -> o i =dp")
        self.optimizer.step()
        self.optimizer.zero_grad()
        return self.share(part)

    def share(self, part: Tensor | None) -> Tensor | None:
        """Return the sum of the parts of the loss, on the ranks of both meshes."""
        encoder, decoder = self.meshes
        loss = None if part is None else decoder.redistribute(part.detach(), "+dp -> =dp")
        moved = decoder.redistribute(loss, "=dp =tp -> =dp", to=encoder)
        return moved if loss is None else loss

    @torch.no_grad()
    def whole_weights(self) -> dict[str, Tensor]:
        """Return the whole weights of the models of this rank."""
        weights: dict[str, Tensor] = {}
        if self.encoder is not None:
            weights["encoder"] = self.encoder.weight.detach()
        if self.decoder is not None:
            mesh = self.meshes[1]
            weights["up"] = mesh.redistribute(self.decoder.up.detach(), "h/tp i -> h i =tp")
            weights["down"] = mesh.redistribute(self.decoder.down.detach(), "o h/tp -> o h =tp")
        return weights


def numbers_of(mesh: meshkit.Mesh, step: int) -> Sequence[int]:
    """Return the numbers of the samples of this rank in a step."""
    plan = mesh.batch(global_batch=BATCH, micro_batch=BATCH // mesh.size("dp"))
    return [int(n) for micro in plan.micro_batches(step) for n in micro.samples]


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Join the job and train; return the losses, and the whole weights of this rank's models."""
    parser = argparse.ArgumentParser(description="Train an encoder and a decoder on other ranks.")
    parser.add_argument("--encoder", type=int, default=4, help="dp of the encoder")
    parser.add_argument("--dp", type=int, default=2, help="dp of the decoder")
    parser.add_argument("--tp", type=int, default=2, help="tp of the decoder")
    parser.add_argument("--steps", type=int, default=8)
    args = parser.parse_args(argv)
    world = meshkit.init(device="cpu").world_size
    first, last = range(args.encoder), range(world - args.dp * args.tp, world)
    try:
        with (
            meshkit.build_mesh(ranks=first, dp=args.encoder) as encoder,
            meshkit.build_mesh(ranks=last, dp=args.dp, tp=args.tp) as decoder,
        ):
            towers = Towers(encoder, decoder)
            losses = [towers.step(step) for step in range(args.steps)]
            if encoder.rank == 0:
                for step, loss in enumerate(losses):
                    print(f"step {step}  loss {loss:.4f}")
            return {"losses": losses, **towers.whole_weights()}
    finally:
        meshkit.shutdown()


if __name__ == "__main__":
    main()
