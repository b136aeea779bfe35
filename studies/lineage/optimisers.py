"""Optimisers of fine-tunes other than AdamW, and a training loop that takes any of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import nn
from torch.optim import Optimizer

WARM_UP = 12  # one step of this many

Parameters = Iterable[nn.Parameter]


class Lion(Optimizer):
    """Chen et al. (2023), "Symbolic Discovery of Optimization Algorithms", algorithm 2: steps by the sign of a momentum."""

    def __init__(self, parameters: Parameters, rate: float) -> None:
        super().__init__(parameters, {"lr": rate, "betas": (0.9, 0.99), "decay": 0.01})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step; there is no closure."""
        for group in self.param_groups:
            first, second = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
                update = (first * momentum + (1 - first) * parameter.grad).sign_()
                parameter.mul_(1 - group["lr"] * group["decay"]).sub_(group["lr"] * update)
                momentum.mul_(second).add_((1 - second) * parameter.grad)


def adafactor(parameters: Parameters, rate: float) -> Optimizer:
    """Shazeer and Stern (2018), with a rate of its own instead of relative steps, as fine-tuning scripts use it."""
    from transformers import Adafactor

    return Adafactor(parameters, lr=rate, scale_parameter=False, relative_step=False)


OPTIMISERS: Mapping[str, Callable[[Parameters, float], Optimizer]] = {
    "adamw": lambda parameters, rate: torch.optim.AdamW(parameters, lr=rate, weight_decay=0.01, fused=True),
    "adafactor": adafactor,
    "lion": Lion,
    "sgd": lambda parameters, rate: torch.optim.SGD(parameters, lr=rate, momentum=0.9),
}


def minimise(
    model: nn.Module, loss: Callable[[], torch.Tensor], steps: int, learning_rate: float, optimiser: str = "adamw"
) -> list[float]:
    """Minimise ``loss`` with warm-up, linear decay and clipped gradients; returns every step's loss."""
    model.train()
    learnt = [parameter for parameter in model.parameters() if parameter.requires_grad]
    stepper = OPTIMISERS[optimiser](learnt, learning_rate)
    warm_up = max(1, steps // WARM_UP)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        stepper, lambda step: min((step + 1) / warm_up, (steps - step) / steps)
    )
    losses = []
    for _ in range(steps):
        value = loss()
        stepper.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(learnt, 1.0)
        stepper.step()
        schedule.step()
        losses.append(value.item())
    return losses
