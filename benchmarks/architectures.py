"""Architectures of timm: exactness and speed of the gradient of a penalised loss.

Results go to `benchmarks/results/architectures.json`, which the page "Differentiating a gradient"
shows. Networks have random weights and ten classes. Exactness is measured in double precision, by
the gradients of all parameters. Speed is measured in single precision, in training mode and
contiguous layout, with the step as a user writes it.

Where stock autograd raises, because a function has no second derivative, the reference is stock
autograd on the same network with the function replaced by its formula.
"""

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from benchmarks.timing import median_row, ratios, time_in_turns
from reglib.double_backward import fast_double_backward
from reglib.regularizers import input_gradient_penalty

PIXELS, CLASSES = 64, 10
EXACTNESS_BATCH, SPEED_BATCH = 2, 8  # convolutions in double precision are slow
EXACT = 1e-8
ANY_SIZE = (
    "resnet10t resnet18 resnet26d resnext26ts seresnext26ts eca_resnext26ts gcresnet33ts "
    "resnetv2_18 densenet121 dla46_c res2net50_14w_8s selecsls42 hrnet_w18_small regnetx_002 "
    "regnety_002 rexnet_100 repvgg_a0 ese_vovnet19b_slim ese_vovnet19b_dw darknet17 cs3darknet_s "
    "mobilenetv2_050 mobilenetv3_small_100 mobilenetv3_large_100 lcnet_050 hardcorenas_a "
    "mnasnet_100 efficientnet_lite0 efficientnet_b0 tinynet_e ghostnet_100 fbnetc_100 "
    "convnext_atto poolformer_s12 mobilevit_xxs edgenext_xx_small mobileone_s0"
).split()
ONE_SIZE = "vit_tiny_patch16_224 deit_tiny_patch16_224 mixer_s32_224".split()
ARCHITECTURES: dict[str, dict[str, Any]] = {
    **{name: {} for name in ANY_SIZE},
    **{name: {"img_size": PIXELS} for name in ONE_SIZE},
}


class Formulas(TorchFunctionMode):
    """Replace functions that stock autograd cannot differentiate twice by their formulas."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is F.hardsigmoid:
            return (args[0] / 6 + 0.5).clamp(0, 1)
        if func is F.scaled_dot_product_attention:
            query, key, value = args
            return (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1) @ value
        return func(*args, **(kwargs or {}))


def network_of(name: str) -> nn.Module:
    """Build a network of timm with random weights."""
    torch.manual_seed(0)
    options = ARCHITECTURES[name]
    return timm.create_model(name, pretrained=False, num_classes=CLASSES, **options)


def loss_of(model: nn.Module, x: Tensor, labels: Tensor, *, formulas: bool = False) -> Tensor:
    """Return the cross-entropy with the penalty on its input gradient."""
    torch.manual_seed(1)  # of dropout
    with Formulas() if formulas else nullcontext():
        logits = model(x)
        penalty = input_gradient_penalty(logits, labels, x).mean()
        return F.cross_entropy(logits, labels) + penalty


def batch_of(dtype: torch.dtype, size: int) -> tuple[Tensor, Tensor]:
    """Draw random images and labels."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(size, 3, PIXELS, PIXELS, generator=generator, dtype=torch.float64)
    return x.to(dtype).requires_grad_(), torch.arange(size) % CLASSES


def gradient(model: nn.Module, *, formulas: bool = False) -> Tensor:
    """Return the gradients of all parameters in double precision, in one vector."""
    parameters = list(model.parameters())
    loss = loss_of(model, *batch_of(torch.float64, EXACTNESS_BATCH), formulas=formulas)
    gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
    return torch.cat([part.flatten() for part in gradients])


def difference(network: nn.Module) -> tuple[float, str | None]:
    """Return the relative difference from stock autograd, and the error that it raises, if any."""
    raises = None
    try:
        expected = gradient(copy.deepcopy(network))
    except RuntimeError as error:
        raises = str(error).splitlines()[0]
        expected = gradient(copy.deepcopy(network), formulas=True)
    got = gradient(fast_double_backward(copy.deepcopy(network)))
    return float((got - expected).norm() / expected.norm()), raises


def step_of(model: nn.Module, *, formulas: bool) -> Callable[[], None]:
    """Return one step as a user writes it."""

    def step() -> None:
        model.zero_grad()
        loss_of(model, *batch_of(torch.float32, SPEED_BATCH), formulas=formulas).backward()

    return step


def measure(name: str, *, rounds: int) -> dict[str, Any]:
    """Measure one architecture."""
    network = network_of(name)
    training, raises = difference(copy.deepcopy(network).double().train())
    evaluation, _ = difference(copy.deepcopy(network).double().eval())
    steps = {
        "stock": step_of(copy.deepcopy(network).train(), formulas=raises is not None),
        "fast": step_of(fast_double_backward(network.train()), formulas=False),
    }
    seconds = time_in_turns(steps, rounds=rounds)
    row = median_row("", name, ratios(seconds["stock"], seconds["fast"]), "x").as_json()
    return {
        "architecture": name,
        "stock_raises": raises,
        "training": float(f"{training:.1e}"),
        "evaluation": float(f"{evaluation:.1e}"),
        "exact": max(training, evaluation) <= EXACT,
        "stock_over_fast": row["value"],
        "quartiles": row["quartiles"],
    }


def run(*, quick: bool) -> dict[str, Any]:
    """Measure all architectures, or two, and print a line for each."""
    names = ("mobilenetv3_small_100", "vit_tiny_patch16_224") if quick else ARCHITECTURES
    rows = []
    for name in names:
        rows.append(measure(name, rounds=1 if quick else 3))
        print(" ".join(f"{value!s:<24}" for value in rows[-1].values()), flush=True)
    return {
        "timm": timm.__version__,
        "pixels": PIXELS,
        "batch": {"exactness": EXACTNESS_BATCH, "speed": SPEED_BATCH},
        "tolerance": EXACT,
        "rows": rows,
    }
