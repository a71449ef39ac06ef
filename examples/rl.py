"""Train a policy on one mesh and sample from it on another, with the weights moved every step.

    torchrun --nproc-per-node 8 rl.py --trainer "dp=3 tp=2" --sampler "tp=2"

The trainer stands on the first ranks of the job and the sampler on the last ones: here on ranks 0-5
and 6-7. On four ranks ``--trainer "dp=2 tp=2" --sampler "dp=4"`` gives both meshes all ranks. In
each step

    1. the weights move to the sampler, in its division: ``trainer.transfer``
    2. the sampler draws a group of answers for each prompt, and rewards them
    3. the answers move to the trainer: ``sampler.transfer``
    4. the trainer raises the probability of answers that are better than their group, as in GRPO

The answers, rewards and weights are those of one process.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import meshkit

PROMPTS, GROUP, LENGTH, VOCABULARY, WIDTH, HIDDEN = 12, 16, 2, 5, 8, 16
CUT = {
    "up": "h/tp d",
    "down": "d h/tp",
    "*": "v d",
}  # the weights on a mesh; other axes hold copies
PATTERNS = {name: f"{side} -> {side}" for name, side in CUT.items()}
ANSWERS = {"rewards": "b/dp g -> b/dp g", "*": "b/dp g t -> b/dp g t"}
UPDATES, CLIP = 2, 0.2  # updates with the answers of one step


def stream(*name: object) -> torch.Generator:
    """Return the random numbers of a name, equal on every rank and mesh."""
    return torch.Generator().manual_seed(meshkit.stream_seed(0, " ".join(map(str, name))))


class Policy(nn.Module):
    """Tokens after a prompt, each from the prompt and the token before it."""

    def __init__(self, mesh: meshkit.Mesh) -> None:
        super().__init__()
        self.mesh = mesh
        shapes = {"prompts": (PROMPTS, WIDTH), "tokens": (VOCABULARY + 1, WIDTH)}
        shapes |= {"up": (HIDDEN, WIDTH), "down": (WIDTH, HIDDEN), "head": (VOCABULARY, WIDTH)}
        whole = {
            name: torch.randn(shape, generator=stream("weight", name), dtype=torch.float64) / 3
            for name, shape in shapes.items()
        }
        parts = mesh.local_state(whole, CUT)
        self.prompts, self.tokens = nn.Parameter(parts["prompts"]), nn.Parameter(parts["tokens"])
        self.up, self.down = nn.Parameter(parts["up"]), nn.Parameter(parts["down"])
        self.head = nn.Parameter(parts["head"])

    def forward(self, prompts: Tensor, before: Tensor) -> Tensor:
        """Return the scores (prompts, group, tokens, VOCABULARY) after tokens (.., tokens)."""
        x = self.prompts[prompts][:, None, None] + self.tokens[before]
        y = self.mesh.redistribute(x, "... d =tp -> ... d *tp")  # each rank has its hidden features
        y = F.linear(F.linear(y, self.up).tanh(), self.down)
        return F.linear(x + self.mesh.redistribute(y, "... d +tp -> ... d =tp"), self.head)

    def log_probabilities(self, prompts: Tensor, tokens: Tensor) -> Tensor:
        """Return those of tokens (prompts, group, tokens)."""
        start = torch.full_like(tokens[..., :1], VOCABULARY)
        scores = self(prompts, torch.cat([start, tokens[..., :-1]], dim=-1))
        return scores.log_softmax(-1).gather(-1, tokens[..., None])[..., 0]


class Answers(NamedTuple):
    """The answers to the prompts of a rank."""

    tokens: Tensor  # (prompts, GROUP, LENGTH)
    scores: Tensor  # the log-probabilities under the weights that drew them
    rewards: Tensor  # (prompts, GROUP)


def prompts_of(mesh: meshkit.Mesh) -> Tensor:
    """Return the prompts of this rank, an equal part along dp."""
    return mesh.redistribute(torch.arange(PROMPTS), "b =dp -> b/dp")


@torch.no_grad()
def draw_answers(policy: Policy, step: int) -> Answers:
    """Return a group of answers for each prompt, and their rewards."""
    prompts = prompts_of(policy.mesh)
    shape = GROUP, LENGTH, VOCABULARY
    noise = torch.stack(
        [torch.rand(shape, generator=stream(step, int(n)), dtype=torch.float64) for n in prompts]
    )
    tokens = torch.full((len(prompts), GROUP, 1), VOCABULARY)
    for t in range(LENGTH):
        scores = policy(prompts, tokens[..., -1:])[:, :, 0]
        drawn = (scores - (-noise[:, :, t].log()).log()).argmax(-1)  # Gumbel's way to draw
        tokens = torch.cat([tokens, drawn[..., None]], dim=-1)
    tokens = tokens[..., 1:]
    wanted = (prompts[:, None] + torch.arange(LENGTH)) % VOCABULARY
    rewards = (tokens == wanted[:, None]).double().mean(-1)
    return Answers(tokens, policy.log_probabilities(prompts, tokens), rewards)


def update(policy: Policy, optimizer: torch.optim.Optimizer, answers: Answers) -> None:
    """Raise the probability of answers that are better than others to the same prompt."""
    mesh, rewards = policy.mesh, answers.rewards
    better = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
    for _ in range(UPDATES):
        scores = policy.log_probabilities(prompts_of(mesh), answers.tokens)
        ratio = (scores - answers.scores).exp()
        clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
        gain = torch.minimum(ratio * better[..., None], clipped * better[..., None])
        (-gain.sum() / (PROMPTS * GROUP * LENGTH)).backward()
        for weight in policy.parameters():
            if weight.grad is not None:
                weight.grad = mesh.redistribute(weight.grad, "o i +dp -> o i =dp")
        optimizer.step()
        optimizer.zero_grad()


def empty_answers(mesh: meshkit.Mesh) -> dict[str, Tensor]:
    """Return tensors of the shapes of the answers of a rank."""
    shape = PROMPTS // mesh.size("dp"), GROUP, LENGTH
    tokens, scores = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.float64)
    return Answers(tokens, scores, scores[..., 0].clone())._asdict()


def train(trainer: meshkit.Mesh, sampler: meshkit.Mesh, steps: int) -> dict[str, Any]:
    """Return the mean reward of each step, and the whole weights, on ranks of the trainer."""
    policy = Policy(trainer) if trainer.inside else None
    actor = Policy(sampler) if sampler.inside else None
    state = None if policy is None else policy.state_dict()
    out = None if actor is None else actor.state_dict()
    sync = trainer.transfer(PATTERNS, to=sampler, like=out if state is None else state)
    like = empty_answers(sampler if sampler.inside else trainer)
    back = sampler.transfer(ANSWERS, to=trainer, like=like)

    optimizer = None if policy is None else torch.optim.SGD(policy.parameters(), lr=4)
    rewards = []
    for step in range(steps):
        sync(state, out=out)  # both hold the tensors of the modules, which change in place
        moved = back(None if actor is None else draw_answers(actor, step)._asdict())
        if policy is not None and optimizer is not None and moved is not None:
            answers = Answers(**moved)
            total = trainer.redistribute(answers.rewards.sum(), "+dp -> =dp")
            rewards.append(float(total / (PROMPTS * GROUP)))
            if trainer.rank == 0:
                print(f"step {step:2d}  reward {rewards[-1]:.3f}")
            update(policy, optimizer, answers)
    if policy is None:
        return {}
    return {"rewards": rewards, "weights": trainer.whole_state(policy.state_dict(), CUT)}


def read_mesh(text: str) -> dict[str, int]:
    """Return the sizes of a mesh, dp and tp, from a text such as ``"dp=3 tp=2"``."""
    sizes = {axis: int(size) for axis, _, size in (word.partition("=") for word in text.split())}
    return {"dp": 1, "tp": 1} | sizes


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Join the job and train; return what :func:`train` does."""
    parser = argparse.ArgumentParser(description="Train a policy, and sample from it elsewhere.")
    parser.add_argument("--trainer", type=read_mesh, default="dp=2 tp=2", help="on the first ranks")
    parser.add_argument("--sampler", type=read_mesh, default="dp=4", help="on the last ranks")
    parser.add_argument("--steps", type=int, default=8)
    args = parser.parse_args(argv)
    world = meshkit.init(device="cpu").world_size
    first, last = (sizes["dp"] * sizes["tp"] for sizes in (args.trainer, args.sampler))
    try:
        with (
            meshkit.build_mesh(args.trainer, ranks=range(first)) as trainer,
            meshkit.build_mesh(args.sampler, ranks=range(world - last, world)) as sampler,
        ):
            return train(trainer, sampler, args.steps)
    finally:
        meshkit.shutdown()


if __name__ == "__main__":
    main()
