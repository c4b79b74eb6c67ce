"""One training loop for every paper: cross-entropy plus the sum of strength x penalty."""

import functools
import hashlib
import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from reglib import captured
from reglib.double_backward import evaluation_mode, fast_double_backward
from reglib.double_backward.functions import is_unsafe
from reglib.regularizers import balancing_weights, group_dro
from suite.data import ImageData, to_float
from suite.errors import check_name, expected
from suite.networks import NETWORKS, build_network
from suite.training import augmentation, optimizers, penalties
from suite.training.penalties import PenaltyInputs, Term
from suite.units import Training

# Images of at most so many bytes stay on the device; otherwise each batch is moved there.
RESIDENT_BYTES = 2**32
# The faster way for each type of device (`benchmarks/results`). On CUDA that is stock autograd: on
# an H200 a penalised step of a ResNet-18 took as long as 3.7 plain steps, against 4.5 the fast way.
# Stock autograd captured in a CUDA graph is not measured.
DEFAULT = {"cpu": "fast", "cuda": "stock"}
WAYS = ("fast", "stock", "captured")
State = dict[str, Any]  # of a training: tensors of `network` and `optimizer`, losses, group weights


class Trained(NamedTuple):
    """A network in evaluation mode, and its mean training loss in each epoch.

    In a network that `diverged`, the loss or a weight is not finite. Such a loss ends the training.
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

    Each epoch has a seed, so a training that resumes at the end of an epoch gives the same numbers
    as an uninterrupted one. The caller's random state stays unchanged.

    Args:
        unit: the training.
        data: the data set that the unit names.
        device: device to train on.
        double_backward: "fast" (see `reglib.double_backward`) or "stock" autograd for penalties, or
            "captured", stock autograd in a CUDA graph (see `reglib.captured`); default: the faster
            way on the device. Their gradients differ by rounding, which a training amplifies, as
            with another number of threads. Neither is part of a unit.
        resume: state from an earlier call of `on_epoch`.
        on_epoch: called after each epoch with a function that returns the state to save.

    Returns:
        The network and its losses.

    Raises:
        UsageError: an unknown name, or data without the groups that the unit asks for.
    """
    fit = _Fit(unit, data, device, double_backward or DEFAULT[device.type], resume)
    with torch.random.fork_rng(), torch.backends.cudnn.flags(deterministic=True, benchmark=False):
        while len(fit.losses) < unit.epochs:
            fit.losses.append(fit.epoch())
            if not math.isfinite(fit.losses[-1]):
                return Trained(fit.network.eval(), fit.losses, diverged=True)
            if on_epoch is not None:
                on_epoch(fit.state)
    finite = all(bool(parameter.isfinite().all()) for parameter in fit.parameters)
    return Trained(fit.network.eval(), fit.losses, diverged=not finite)


def check(unit: Training) -> None:
    """Check the names in a unit before anything is computed.

    Raises:
        UsageError: an unknown network, optimizer or penalty, or an unknown or missing setting.
    """
    check_name("network", unit.network, NETWORKS)
    optimizers.build_optimizer(unit, nn.ParameterList([torch.zeros(1, 1), torch.zeros(1)]))
    penalties.terms(unit.penalties)


def initial_network(unit: Training, data: ImageData) -> nn.Module:
    """Build the untrained network of a unit.

    Raises:
        UsageError: the network cannot take the images of the data, or these cannot be augmented as
            the unit asks.
    """
    augmentation.check_size(unit, data.shape[1:])
    return build_network(
        unit.network, data.shape, len(data.classes), options=unit.network_options, seed=unit.seed
    )


def memory_format(
    network: nn.Module, device: torch.device, *, stock_penalties: bool = False
) -> torch.memory_format:
    """Choose the faster layout: channels-last on the CPU, with two exceptions.

    In channels-last, the double backward pass of stock batch normalisation is slow, and oneDNN
    computes some weight gradients wrongly.
    """
    batch_norm = any(isinstance(module, nn.BatchNorm2d) for module in network.modules())
    bad = any(is_unsafe(m.weight, m.stride) for m in network.modules() if isinstance(m, nn.Conv2d))
    fast = device.type == "cpu" and not (stock_penalties and batch_norm) and not bad
    return torch.channels_last if fast else torch.contiguous_format


class _FloatGrouped(TorchFunctionMode):
    """Computes grouped convolutions in float32 within autocast, which is faster on a CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not F.conv2d or len(args) < 7 or args[6] == 1:
            return func(*args, **(kwargs or {}))
        with torch.autocast("cpu", enabled=False):
            return func(args[0].float(), args[1].float(), *args[2:])


class _Fit:
    """A training in progress. The model of `context` is the network, or a fast view of it.

    `groups` (N,) are the groups of the images, and `weights` (groups,) the weights of Group DRO,
    which change in place.
    """

    def __init__(
        self, unit: Training, data: ImageData, device: torch.device, way: str, resume: State | None
    ) -> None:
        self.unit = unit
        network = initial_network(unit, data).to(device)
        stock = bool(unit.penalties) and way != "fast"
        self.layout = memory_format(network, device, stock_penalties=stock)
        self.network = network.to(memory_format=self.layout)
        self.parameters = list(network.parameters())
        self.optimizer = optimizers.build_optimizer(unit, network)
        self.captures = device.type == "cuda" and way == "captured"
        for group in self.optimizer.param_groups if self.captures else ():
            group["lr"] = torch.tensor(group["lr"], device=device)
            group |= {"capturable": True} if "capturable" in group else {}
        self.generator = torch.Generator(device)
        self.steps: dict[Any, Callable[..., Tensor]] = {}
        self.losses: list[float] = []
        if resume is not None:
            self._restore(resume)
        self.terms = penalties.terms(unit.penalties)
        images = data.train.images[: unit.n_train]
        self.images = images.to(device) if images.nbytes <= RESIDENT_BYTES else images
        self.labels = data.train.labels[: unit.n_train].to(device)
        fast: nn.Module = network
        if way == "fast" and unit.fixed_statistics:
            fast = evaluation_mode(network)
        elif way == "fast" and self.terms:
            fast = fast_double_backward(network)
        # The model of steps without a penalty on the forward pass.
        self.plain = fast if unit.fixed_statistics else network
        self.context = penalties.TrainingContext(
            fast, lambda: (batch.to(device) for batch in self.images.split(500))
        )
        self.groups = self.weights = torch.empty(0)
        if unit.group_dro is not None or unit.balance_groups:
            self._set_groups(data, resume)

    def _set_groups(self, data: ImageData, resume: State | None) -> None:
        """Set the groups of the images, and their weights: equal, or those of a checkpoint."""
        groups = data.train.groups
        if groups is None:
            need = "groups of images, which group_dro and balance_groups need"
            raise expected(f"data set {self.unit.data!r}", need, "none")
        self.groups = groups[: self.unit.n_train].to(self.labels.device)
        count = int(groups.max()) + 1
        self.weights = torch.full((count,), 1 / count, device=self.labels.device)
        if resume is not None:
            if "group_weights" not in resume:
                raise expected("resume", "the state of a training with groups", "another")
            self.weights.copy_(resume["group_weights"])

    def _restore(self, state: State) -> None:
        """Put network, optimizer and losses into a state.

        Raises:
            UsageError: not a state of a training.
        """
        if not {"network", "optimizer", "losses"} <= state.keys():
            raise expected("resume", "the state that on_epoch gave", "something else")
        self.losses = [*state["losses"]]
        self.network.load_state_dict(state["network"])
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state["optimizer"], "param_groups": groups})
        # Layouts may differ; fused optimizers pair a weight with its moments by memory offset.
        for parameter, moments in self.optimizer.state.items():
            for name, value in moments.items():
                if value.shape == parameter.shape:
                    moments[name] = torch.empty_like(parameter).copy_(value)

    def state(self) -> State:
        """Return the state from which the training can resume."""
        state: State = {"network": self.network.state_dict(), "losses": self.losses}
        state["optimizer"] = self.optimizer.state_dict()["state"]
        return state | {"group_weights": self.weights} if len(self.weights) else state

    def epoch(self) -> float:
        """Train on all images once; return the mean loss, penalties included."""
        unit, device, epoch = self.unit, self.labels.device, len(self.losses)
        seed = _seed(f"{unit.seed}/{epoch}")
        torch.manual_seed(seed)
        self.generator.manual_seed(seed)
        changes = torch.Generator().manual_seed(_seed(f"{unit.seed}/{epoch}/changes"))
        batches = self._order(seed).to(device).split(unit.batch_size)
        self.network.train(not unit.fixed_statistics)
        total = torch.zeros((), device=device, dtype=torch.float64)
        for number, index in enumerate(batches, start=1 + epoch * len(batches)):
            optimizers.set_learning_rate(
                self.optimizer, unit, steps=number - 1, steps_per_epoch=len(batches)
            )
            pixels = self.images[index.to(self.images.device)].to(device)
            images = to_float(augmentation.augment(unit, pixels, changes), unit.pixel_range)
            images = augmentation.add_noise(images, unit.input_noise, generator=changes)
            images = images.contiguous(memory_format=self.layout)
            acting = [(t, t.strength_in(number)) for t in self.terms if number % t.every == 0]
            loss = self._step_of(acting)(images, self.labels[index], index)
            total += loss.detach() * len(index)
        return float(total) / len(self.images)

    def _step_of(self, acting: list[tuple[Term, float]]) -> Callable[..., Tensor]:
        """Return the step for some penalties and strengths, which are constants of a CUDA graph."""
        step = functools.partial(self._step, acting)
        key = tuple((term.name, strength) for term, strength in acting)
        if not self.captures or "cure" in dict(key):  # the radius of CURE follows the epoch
            return step
        if key not in self.steps:
            self.steps[key] = captured(step, self.optimizer, generators=[self.generator])
        return self.steps[key]

    def _step(
        self, acting: list[tuple[Term, float]], images: Tensor, labels: Tensor, index: Tensor
    ) -> Tensor:
        """Take one step of the optimizer; return the loss, penalties included."""
        half = self.unit.precision == "bfloat16"
        floats = _FloatGrouped() if half and images.device.type == "cpu" else nullcontext()
        with torch.autocast(images.device.type, torch.bfloat16, enabled=half), floats:
            batch = self._forward({term.name for term, _ in acting}, images, labels)
            loss = self._cross_entropy(batch, index)
            for term, strength in acting:
                loss = loss + strength * term.penalty(batch).mean()
        self.optimizer.zero_grad()
        # Naming the parameters avoids an unused gradient with respect to the images.
        torch.autograd.backward(loss, inputs=self.parameters)
        if self.unit.clip is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.unit.clip)
        self.optimizer.step()
        return loss

    def _order(self, seed: int) -> Tensor:
        """Draw the order of the images in an epoch, with repeats where groups are balanced."""
        generator = torch.Generator().manual_seed(seed)
        if not self.unit.balance_groups:
            return torch.randperm(len(self.images), generator=generator)
        chances = balancing_weights(self.groups, len(self.weights)).cpu()
        return chances.multinomial(len(self.images), replacement=True, generator=generator)

    def _forward(self, names: set[str], images: Tensor, labels: Tensor) -> PenaltyInputs:
        penalised = bool(names - penalties.NEEDS_OWN_FORWARD)
        return penalties.forward(
            self.context.model if penalised else self.plain,  # the faster of the two
            images.requires_grad_(penalised),
            labels,
            self.generator,
            pixel_range=self.unit.pixel_range,
            context=self.context,
            epoch=len(self.losses),
            with_class_maps="class_map_l1" in names,
            with_activations="activation_l1" in names,
        )

    def _cross_entropy(self, batch: PenaltyInputs, index: Tensor) -> Tensor:
        """Return the mean over a batch, or the loss of Group DRO, which updates its weights."""
        smoothing, step_size = self.unit.label_smoothing, self.unit.group_dro
        reduction = "mean" if step_size is None else "none"
        losses = F.cross_entropy(
            batch.logits, batch.labels, reduction=reduction, label_smoothing=smoothing
        )
        if step_size is None:
            return losses
        loss, weights = group_dro(losses, self.groups[index], self.weights, step_size=step_size)
        self.weights.copy_(weights)
        return loss


def _seed(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")
