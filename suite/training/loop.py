"""One training loop for every paper: cross-entropy plus the sum of strength x penalty."""

import hashlib
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reglib.double_backward import fast_double_backward
from reglib.double_backward.modules import viewed
from reglib.regularizers import balancing_weights, group_dro
from suite.data import ImageData, Split, to_float
from suite.errors import UsageError
from suite.networks import build_network
from suite.training.augmentation import check_crop_padding, crop_and_flip, zoom_in
from suite.training.checkpoints import State, restore, state_of
from suite.training.checks import check, own_settings
from suite.training.optimizers import build_optimizer, set_learning_rate
from suite.training.penalties import Constants, Step, take_step
from suite.training.registry import OWN_PASS, PENALTIES
from suite.units import Training

# Images of at most so many bytes are kept on the device; of more, each batch is brought there.
RESIDENT_BYTES = 2**32
# What training takes by the kind of device: the faster of the two where that was measured
# (`benchmarks/results`). On CUDA it never was, so it is stock there.
DEFAULT = {"cpu": "fast", "cuda": "stock"}


class Trained(NamedTuple):
    """A network in evaluation mode, and its mean training loss in each epoch.

    `diverged` says that the loss or a weight is not finite, which ended the training.
    """

    network: nn.Module
    losses: list[float]
    diverged: bool


def train(
    unit: Training,
    data: ImageData,
    *,
    device: torch.device,
    double_backward: str | None = None,
    resume: State | None = None,
    on_epoch: Callable[[Callable[[], State]], None] | None = None,
) -> Trained:
    """Train a network.

    Each epoch draws its random numbers from a seed of its own, so a training that goes on from the
    end of any epoch gives the same numbers as one that was never interrupted. The caller's random
    state is left as it was.

    Args:
        unit: what to train.
        data: the data set that the unit names.
        device: where to train.
        double_backward: "fast" (see `reglib.double_backward`) or "stock" autograd for penalties;
            default: the faster one of the device. Gradients differ by rounding, which a training
            amplifies as it does with another number of threads: neither is part of a unit.
        resume: state from an earlier call of `on_epoch`.
        on_epoch: called after each epoch with a function that gives the state to save.

    Returns:
        The network and its losses.

    Raises:
        UsageError: an unknown name, an unknown way of double backpropagation, or data without the
            groups that the unit asks for.
    """
    check(unit)
    way = double_backward or DEFAULT[device.type]
    if way not in ("fast", "stock"):
        raise UsageError(f"double_backward: expected fast or stock, got {way!r}")
    network = initial_network(unit, data).to(device)
    penalised = bool(unit.penalties)
    layout = memory_format(network, device, stock_penalties=penalised and way == "stock")
    network = network.to(memory_format=layout)
    model = fast_double_backward(network) if penalised and way == "fast" else network
    parameters = list(network.parameters())
    optimizer = build_optimizer(unit, network)
    losses: list[float] = []
    if resume is not None:
        losses = restore(resume, network, optimizer)
    groups = _groups(unit, data, device, resume)

    def state() -> State:
        state = state_of(network, optimizer, losses)
        return state if groups is None else state | {"group_weights": groups.weights}

    images = data.train.images[: unit.n_train]
    images = images.to(device) if images.nbytes <= RESIDENT_BYTES else images
    split = Split(images, data.train.labels[: unit.n_train].to(device))
    constants = Constants(model, lambda: (part.to(device) for part in images.split(500)))
    with torch.random.fork_rng(), torch.backends.cudnn.flags(deterministic=True, benchmark=False):
        for epoch in range(len(losses), unit.epochs):
            losses.append(_epoch(unit, constants, optimizer, layout, split, groups, epoch))
            if not math.isfinite(losses[-1]):
                return Trained(network.eval(), losses, diverged=True)
            if on_epoch is not None:
                on_epoch(state)
    finite = all(bool(parameter.isfinite().all()) for parameter in parameters)
    return Trained(network.eval(), losses, diverged=not finite)


def initial_network(unit: Training, data: ImageData) -> nn.Module:
    """Build the network of a unit as it is before training.

    Raises:
        UsageError: the network does not take the images of the data, or they cannot be cropped.
    """
    check_crop_padding(unit.crop_padding, data.shape[1:])
    return build_network(
        unit.network, data.shape, len(data.classes), options=unit.network_options, seed=unit.seed
    )


def memory_format(
    network: nn.Module, device: torch.device, *, stock_penalties: bool = False
) -> torch.memory_format:
    """Choose the layout that is faster: channels-last on the CPU.

    The double backward pass of stock batch normalisation is slow in that layout.
    """
    batch_norm = any(isinstance(module, nn.BatchNorm2d) for module in network.modules())
    fast = device.type == "cpu" and not (stock_penalties and batch_norm)
    return torch.channels_last if fast else torch.contiguous_format


class _Groups(NamedTuple):
    """Groups (N,) of the images, and the weights (groups,) of Group DRO, which change in place."""

    groups: Tensor
    weights: Tensor


def _groups(
    unit: Training, data: ImageData, device: torch.device, resume: State | None
) -> _Groups | None:
    if unit.group_dro is None and not unit.balance_groups:
        return None
    if data.train.groups is None:
        raise UsageError(
            f"data set {unit.data!r}: expected groups of images, which group_dro and "
            "balance_groups need, got none"
        )
    groups = data.train.groups[: unit.n_train].to(device)
    count = int(data.train.groups.max()) + 1
    weights = torch.full((count,), 1 / count, device=device)
    if resume is not None:
        if "group_weights" not in resume:
            raise UsageError("resume: expected the state of a training with groups, got another")
        weights.copy_(resume["group_weights"])
    return _Groups(groups, weights)


def _epoch(
    unit: Training,
    constants: Constants,
    optimizer: torch.optim.Optimizer,
    layout: torch.memory_format,
    split: Split,
    groups: _Groups | None,
    epoch: int,
) -> float:
    """Go through the images once; return the mean loss, penalties included."""
    seed = _seed(f"{unit.seed}/{epoch}")
    torch.manual_seed(seed)
    device = split.labels.device
    generator = torch.Generator(device).manual_seed(seed)
    changes = torch.Generator().manual_seed(_seed(f"{unit.seed}/{epoch}/changes"))
    batches = _order(unit, split, groups, seed).to(device).split(unit.batch_size)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    network = viewed(constants.model).train()  # faster where no penalty acts
    total = torch.zeros((), device=device, dtype=torch.float64)
    for number, index in enumerate(batches, start=1 + epoch * len(batches)):
        set_learning_rate(optimizer, unit, steps=number - 1, steps_per_epoch=len(batches))
        pixels = crop_and_flip(
            split.images[index.to(split.images.device)].to(device),
            crop_padding=unit.crop_padding,
            flip=unit.flip,
            generator=changes,
        )
        if unit.zoom is not None:
            pixels = zoom_in(pixels, unit.zoom, generator=changes)
        images = to_float(pixels, unit.pixel_range).contiguous(memory_format=layout)
        acting = {n: s for n, s in unit.penalties.items() if number % s.get("every", 1) == 0}
        looked_at = bool(acting.keys() - OWN_PASS)
        step = take_step(
            constants.model if looked_at else network,
            images.requires_grad_(looked_at),
            split.labels[index],
            generator,
            pixel_range=unit.pixel_range,
            constants=constants,
            epoch=epoch,
            with_activations="activation_l1" in acting,
        )
        loss = _cross_entropy(unit, step, groups, index)
        for name, settings in acting.items():
            values = PENALTIES[name](step, **own_settings(settings))
            loss = loss + settings["strength"] * values.mean()
        optimizer.zero_grad()
        # Naming the parameters spares a gradient by the images that nobody needs.
        torch.autograd.backward(loss, inputs=parameters)
        optimizer.step()
        total += loss.detach() * len(index)
    return float(total) / len(split.images)


def _seed(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")


def _order(unit: Training, split: Split, groups: _Groups | None, seed: int) -> Tensor:
    """Draw the order of the images in an epoch; where groups are balanced, with repeats."""
    generator = torch.Generator().manual_seed(seed)
    if groups is None or not unit.balance_groups:
        return torch.randperm(len(split.images), generator=generator)
    chances = balancing_weights(groups.groups, len(groups.weights)).cpu()
    return chances.multinomial(len(split.images), replacement=True, generator=generator)


def _cross_entropy(unit: Training, step: Step, groups: _Groups | None, index: Tensor) -> Tensor:
    """Return the mean over a batch, or what Group DRO makes of it, which moves the weights."""
    if groups is None or unit.group_dro is None:
        return F.cross_entropy(step.logits, step.labels, label_smoothing=unit.label_smoothing)
    losses = F.cross_entropy(
        step.logits, step.labels, reduction="none", label_smoothing=unit.label_smoothing
    )
    loss, weights = group_dro(
        losses, groups.groups[index], groups.weights, step_size=unit.group_dro
    )
    groups.weights.copy_(weights)
    return loss
