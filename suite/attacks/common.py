"""What all attacks share: checks, random numbers, and the verdict."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from reglib.double_backward import folded_copy
from suite.errors import unknown

NORMS: dict[str, Any] = {"linf": np.inf, "l2": 2}
BATCH_SIZE = 128

Perturb = Callable[[nn.Module, Tensor, Tensor], Tensor]


class Attacked(NamedTuple):
    """What an attack came to.

    Args:
        images: the attacked images, (B, C, H, W).
        unchanged: the prediction is that of the clean image, (B,): "robust" in the paper.
        correct: the prediction was right, and is unchanged, (B,): the usual robust accuracy.
    """

    images: Tensor
    unchanged: Tensor
    correct: Tensor


def judged(
    model: nn.Module,
    images: Tensor,
    attacked: Tensor,
    labels: Tensor,
    *,
    batch_size: int = BATCH_SIZE,
) -> Attacked:
    """Say what a network makes of attacked images, of another network's, say (transfer).

    Args:
        model: network; a copy in evaluation mode is asked.
        images, attacked: clean and attacked images, (B, C, H, W).
        labels: (B,).
        batch_size: images at a time.
    """
    return _judged(folded_copy(model), images, attacked, labels, batch_size)


def _judged(
    frozen: nn.Module, images: Tensor, attacked: Tensor, labels: Tensor, batch_size: int
) -> Attacked:
    before, after = (_predicted(frozen, x, batch_size) for x in (images, attacked))
    unchanged = before == after
    return Attacked(attacked, unchanged, unchanged & (before == labels))


def attack_all(
    perturb: Perturb, model: nn.Module, images: Tensor, labels: Tensor, batch_size: int
) -> Attacked:
    """Attack images batch by batch; `perturb` gets network, images and predicted classes.

    The copy of the network keeps the gradients and modes of an attack away from the caller's.
    """
    frozen = folded_copy(model)
    batches = images.detach().split(batch_size)
    attacked = [perturb(frozen, x, _predicted(frozen, x, batch_size)) for x in batches]
    return _judged(frozen, images, torch.cat(attacked), labels, batch_size)


@torch.no_grad()
def _predicted(model: nn.Module, images: Tensor, batch_size: int) -> Tensor:
    logits = torch.cat([model(x) for x in images.split(batch_size)])
    if not logits.isfinite().all():
        raise ValueError(
            "model: expected finite logits, got infinity or NaN; has the training diverged?"
        )
    return logits.argmax(1)


@contextmanager
def seeded(generator: torch.Generator) -> Iterator[None]:
    """Give the libraries, which use global generators, numbers of this one; restore them after."""
    seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
    kept = np.random.get_state(), random.getstate()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(kept[0])
            random.setstate(kept[1])


def check(images: Tensor, epsilon: float, norm: str, **positive: float) -> None:
    if norm not in NORMS:
        raise unknown("norm", norm, NORMS)
    low, high = float(images.min()), float(images.max())
    if not 0 <= low <= high <= 1:
        raise ValueError(
            f"images: expected values in [0, 1], got {low:.3g} to {high:.3g}; make what brings "
            "them to another range part of the network, for instance "
            "nn.Sequential(v2.Normalize(mean, std), network)"
        )
    largest = 1.0 if norm == "linf" else images[0].numel() ** 0.5
    if not 0 < epsilon <= largest:
        raise ValueError(
            f"epsilon: expected a number above 0 and up to {largest:.4g}, the largest change of "
            f"an image in [0, 1] by {norm}, got {epsilon}; 8 of 255 levels are 8/255"
        )
    for name, value in positive.items():
        if not value > 0:
            raise ValueError(f"{name}: expected a positive number, got {value}")
