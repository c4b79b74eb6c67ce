"""The input Hessian of EfficientNet-Lite0 on one image, against the method of the paper's authors.

They compute a vector-Jacobian product for each of the 1,000 classes, keep all of them, and
decompose a dense matrix of 1,000 x 1,000. Their program computes the products of 32 classes at a
time. One class at a time, which may be faster on a CPU, is timed too. Weights are random: the time
of a product does not depend on them. The number of products of Lanczos depends on the
probabilities. So the logits are scaled until the top probability is the median of photographs.
"""

import warnings
from typing import Any

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.timing import Row, median_row, ratios, seconds_of, time_in_turns
from reglib.double_backward import folded_copy
from reglib.input_hessian import closed_form_hessian, decomposition, hessian_eigenpairs
from reglib.saliency import caso, surrogate_loss
from reglib.saliency.proximal import Settings

TITLE = "input Hessian"
PAIR_GOAL, FULL_GOAL, ERROR_GOAL = 50, 2, 1e-4
WAYS = ("authors' way", "authors' way, batches of 32")
CLASSES = 1000
TOP_PROBABILITY = 0.8
AUTHORS_SETTINGS = Settings(step=0.1, max_iterations=10)


def run(device: torch.device, *, quick: bool) -> list[Row]:
    """Time the leading eigenpair, the full decomposition, and CASO of a batch."""
    size = 64 if quick else 224
    network, images = subject(device, size, 4 if quick else 16)
    fast = folded_copy(network).to(memory_format=torch.channels_last)
    laid_out = images.contiguous(memory_format=torch.channels_last)
    image = laid_out[:1]
    functions: dict[str, Any] = {
        "authors' way": lambda: authors_eigenpairs(authors_factor(network, images[:1])),
        "authors' way, batches of 32": lambda: authors_eigenpairs(
            authors_factor(network, images[:1], batch=32)
        ),
        "full with eigenvectors": lambda: decomposition(fast, image, n_vectors=None),
        "full, Jacobian not kept": lambda: decomposition(fast, image, keep_jacobian=False),
    }
    full = time_in_turns(functions, rounds=1, warm_up=0)
    pair = time_in_turns(
        {
            "leading eigenpair": lambda: leading(network, image),
            "leading eigenpair, folded": lambda: leading(fast, image),
        },
        rounds=3 if quick else 9,
    )
    case = f"EfficientNet-Lite0, {size} pixels"
    rows = [
        median_row(TITLE, f"{case}: {name}", [1000 * s for s in values], "ms")
        for name, values in {**full, **pair}.items()
    ]
    (authors,) = full["authors' way"]
    for name, values in pair.items():
        speeds = [authors / s for s in values]
        rows.append(median_row(TITLE, f"authors' way / {name}", speeds, "x", at_least=PAIR_GOAL))
    for way in WAYS:
        ratio = ratios(full[way], full["full with eigenvectors"])
        case = f"{way} / full with eigenvectors"
        rows.append(median_row(TITLE, case, ratio, "x", at_least=FULL_GOAL))
    ratio = ratios(full["authors' way"], full["full, Jacobian not kept"])
    rows.append(median_row(TITLE, "authors' way / full, Jacobian not kept", ratio, "x"))
    return [*rows, *_errors(fast, image), *_batch(fast, laid_out)]


def subject(device: torch.device, size: int, n_images: int) -> tuple[nn.Module, Tensor]:
    """Build the network, with statistics of normalisation that bound its activations."""
    torch_state = torch.get_rng_state()
    torch.manual_seed(0)
    network: nn.Module = timm.create_model("efficientnet_lite0").to(device)
    torch.set_rng_state(torch_state)
    generator = torch.Generator(device).manual_seed(1)
    images = torch.randn(n_images, 3, size, size, generator=generator, device=device)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None
    with torch.no_grad():
        network.train()(images)
        classifier: Any = network.eval().get_submodule("classifier")
        while network(images[:1]).softmax(1).max() < TOP_PROBABILITY:
            classifier.weight.mul_(1.1)
            classifier.bias.mul_(1.1)
    return network.requires_grad_(False), images


def leading(network: nn.Module, images: Tensor) -> Any:
    """Compute the leading eigenpair of each image from scratch."""
    return hessian_eigenpairs(closed_form_hessian(network, images))


def authors_factor(network: nn.Module, image: Tensor, *, batch: int = 1) -> Tensor:
    """Return B of H = B B^T, (d, c): the Jacobian times a Cholesky-like factor of A.

    The Jacobian is computed by backward passes for `batch` classes at a time. For a batch of
    classes, the image is repeated as often, as in the authors' program.
    """
    inputs = image.detach().repeat(batch, 1, 1, 1).requires_grad_()
    logits = network(inputs)
    w = torch.cat([_gradients(logits, inputs, part) for part in torch.arange(CLASSES).split(batch)])
    p = logits[0].detach().softmax(0)
    values, vectors = torch.linalg.eigh(torch.diag(p) - torch.outer(p, p))
    return w.T @ (vectors * values.clamp_min(0).sqrt())


def authors_eigenpairs(b: Tensor) -> tuple[Tensor, Tensor]:
    """Decompose H = B B^T by the dense matrix B^T B.

    Returns:
        Eigenvalues (c,), largest first, and eigenvectors (c, d).
    """
    values, vectors = torch.linalg.eigh(b.T @ b)
    tiny = torch.finfo(values.dtype).tiny
    return values.flip(0), ((b @ vectors) / values.clamp_min(tiny).sqrt()).T.flip(0)


def _gradients(logits: Tensor, inputs: Tensor, classes: Tensor) -> Tensor:
    """Differentiate one logit of each copy of the image, (classes, d)."""
    chosen = logits[torch.arange(len(classes)), classes].sum()
    return torch.autograd.grad(chosen, inputs, retain_graph=True)[0][: len(classes)].flatten(1)


def _errors(network: nn.Module, image: Tensor) -> list[Row]:
    case, exact = "leading eigenpair", decomposition(network, image)
    pair = leading(network, image)
    error = float((pair.values[0, 0] / exact.values[0, 0] - 1).abs())
    cosine = F.cosine_similarity(pair.vectors[0, 0].flatten(), exact.vectors[0, 0].flatten(), 0)
    return [
        Row(TITLE, f"{case}: products until it converged", int(pair.products[0]), ""),
        Row(TITLE, f"{case}: relative error of the eigenvalue", error, "", at_most=ERROR_GOAL),
        Row(TITLE, f"{case}: 1 - cosine with the exact one", float(1 - cosine.abs()), ""),
    ]


def _batch(network: nn.Module, images: Tensor) -> list[Row]:
    with torch.no_grad():
        labels = network(images).argmax(1)

    def interpret(images: Tensor, labels: Tensor) -> None:
        loss = surrogate_loss(network, images, labels, closed_form=True)
        caso(loss, lambda1=1e-4, settings=AUTHORS_SETTINGS)

    def one_by_one() -> None:
        for image, label in zip(images.split(1), labels.split(1), strict=True):
            interpret(image, label)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # so few iterations do not converge
        together = seconds_of(lambda: interpret(images, labels))
        single = seconds_of(one_by_one)
    n = len(images)
    return [
        Row(TITLE, f"CASO of {n} images at once", 1000 * together, "ms"),
        Row(TITLE, f"CASO, {n} images one by one / at once", single / together, "x"),
    ]
