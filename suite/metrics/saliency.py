"""Saliency maps from gradients: of a logit or loss, averaged, along a path; ascent on a logit."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from reglib._checks import check_images, check_logits, check_network, check_positive
from reglib._common import unit_length
from reglib.autodiff import input_gradient
from reglib.input_hessian.products import logit_weights
from reglib.saliency import Interpretation, Settings, SurrogateLoss, cafo, caso, choose_lambda1
from reglib.saliency.surrogate import noisy_copies, smooth_surrogate_loss, surrogate_loss
from suite.errors import check_name, expected

Saliency = Callable[[nn.Module, Tensor, Tensor], Tensor]


def logit_gradient(model: nn.Module, images: Tensor, class_index: Tensor) -> Tensor:
    r"""Compute the input gradient of a logit.

    .. math:: a(x) = \nabla_x f_c(x)

    Args:
        model: network in evaluation mode, from images to logits (B, classes).
        images: (B, C, H, W).
        class_index: the class `c` of each image, (B,).

    Returns:
        Signed maps, (B, C, H, W).

    Source: :cite:t:`simonyan2014`, without the absolute value; called "input gradient" in section
    3.1 of :cite:t:`demoor2025`.
    """
    inputs = images.detach().requires_grad_()
    logits = model(inputs)
    return input_gradient(logits.gather(1, class_index[:, None]), inputs).detach()


def maximise_activation(
    model: nn.Module, start: Tensor, class_index: Tensor, *, n_steps: int, step_size: float
) -> Tensor:
    r"""Change images by gradient ascent on a logit.

    .. math:: x^{t+1} = \Pi \Bigl( x^t + \alpha
       \frac{\nabla_x f_c(x^t)}{\| \nabla_x f_c(x^t) \|_2} \Bigr)

    with :math:`\Pi` the projection into [0, 1].

    Args:
        model: network in evaluation mode.
        start: initial images, (B, C, H, W); random images in the paper.
        class_index: the class `c` of each image, (B,).
        n_steps: number of steps.
        step_size: :math:`\alpha`, the Euclidean length of a step.

    Returns:
        Images, (B, C, H, W).

    Raises:
        ValueError: `n_steps` or `step_size` is not positive.

    Source: appendix A.6 of :cite:t:`yang2024`, which states neither the number of steps nor the
    normalisation; after :cite:t:`simonyan2014`.
    """
    check_positive(n_steps=n_steps, step_size=step_size)
    images = start
    for _ in range(n_steps):
        step = unit_length(logit_gradient(model, images, class_index))
        images = torch.clamp(images + step_size * step, 0, 1)
    return images


def loss_gradient(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    r"""Compute the input gradient of the cross-entropy of each image.

    .. math:: a(x) = \nabla_x H(y, \hat y) = W (p - y)

    The last step is in double precision: see `reglib.input_hessian.InputHessian.gradient`.

    Args:
        model: network in evaluation mode, from images to logits (B, classes).
        images: (B, C, H, W).
        labels: class indices, (B,).

    Returns:
        Signed maps, (B, C, H, W).

    Raises:
        ValueError: the network is in training mode, or images, logits or labels have another type
            or shape.

    Source: equation 3 of :cite:t:`singla2019`. Their "vanilla gradient" is the gradient of the
    logit, see `logit_gradient`.
    """
    check_network(model)
    check_images(images)
    inputs = images.detach().requires_grad_()
    with torch.enable_grad():
        logits = model(inputs)
        check_logits(logits.detach(), len(images))
        return input_gradient(logits * logit_weights(logits.detach(), labels), inputs).detach()


def smooth_grad(
    model: nn.Module,
    images: Tensor,
    class_index: Tensor,
    *,
    generator: torch.Generator,
    n_samples: int = 16,
    noise_level: float = 0.15,
    method: Saliency = loss_gradient,
) -> Tensor:
    r"""Average a saliency method over images with noise (SmoothGrad).

    .. math:: \frac 1 n \sum_{j=1}^n a(x + \epsilon_j), \qquad
       \epsilon_j \sim \mathcal N(0, \sigma^2 I), \quad
       \sigma = \text{noise\_level} \cdot (\max_i x_i - \min_i x_i)

    Args:
        model: network in evaluation mode.
        images: (B, C, H, W).
        class_index: class index of each image, (B,).
        generator: source of the noise, on the device of `images`.
        n_samples: noisy copies, which go through the network one after another.
        noise_level: standard deviation of the noise as a share of the range of an image.
        method: saliency method whose maps are averaged.

    Returns:
        Maps, (B, C, H, W).

    Raises:
        ValueError: `n_samples` or `noise_level` is out of its range; as `method`.

    Source: :cite:t:`smilkov2017`. The defaults of 16 samples and 0.15 are those of the program of
    :cite:t:`singla2019`.
    """
    copies = noisy_copies(images, generator=generator, n_samples=n_samples, noise_level=noise_level)
    return torch.stack([method(model, noisy, class_index) for noisy in copies]).mean(0)


def integrated_gradients(
    model: nn.Module,
    images: Tensor,
    class_index: Tensor,
    *,
    n_steps: int = 50,
    multiply_by_inputs: bool = True,
    baselines: Tensor | None = None,
) -> Tensor:
    r"""Compute Integrated Gradients of a logit, by Captum.

    .. math:: a_i(x) = \frac 1 N \sum_{n=1}^N (x_i - x'_{n,i})
       \int_0^1 \partial_i f_c(x'_n + \alpha (x - x'_n)) \, d\alpha

    Args:
        model: network in evaluation mode.
        images: (B, C, H, W).
        class_index: the class of each image, (B,).
        n_steps: points of Gauss-Legendre quadrature, which go through the network one by one.
        multiply_by_inputs: False leaves out the factor :math:`x_i - x'_{n,i}`.
        baselines: the images :math:`x'_n`, (N, C, H, W), the same for all images; by default a
            single image of zeros.

    Returns:
        Signed maps, (B, C, H, W). With the factor they sum to the logit minus the logit of the
        baseline (averaged over baselines), as far as `n_steps` suffice.

    Raises:
        ValueError: the network is in training mode, or `n_steps` is not positive.
        UsageError: no baselines, or baselines of another shape than the images.

    Source: :cite:t:`sundararajan2017`; over other images as in section 4.1.2 of
    :cite:t:`moens2020`. The default baseline is zero in the units of `images`.
    """
    check_network(model)
    check_images(images)
    check_positive(n_steps=n_steps)
    if baselines is not None and (len(baselines) == 0 or baselines.shape[1:] != images.shape[1:]):
        shape = f"shape (N, {', '.join(map(str, images.shape[1:]))}), N >= 1"
        raise expected("baselines", shape, tuple(baselines.shape))
    with _quiet_captum():
        from captum.attr import IntegratedGradients

        method = IntegratedGradients(model, multiply_by_inputs=multiply_by_inputs)

        def attribute(inputs: Tensor, target: Tensor | int, start: Tensor | None = None) -> Tensor:
            options = {"target": target, "n_steps": n_steps, "internal_batch_size": len(inputs)}
            return method.attribute(inputs.detach(), baselines=start, **options).detach()

        if baselines is None:
            return attribute(images, class_index).to(images.dtype)
        means = []
        for image, c in zip(images, class_index):
            maps = [attribute(image.expand_as(x), int(c), x) for x in baselines.split(100)]
            means.append(torch.cat(maps).mean(0))
    return torch.stack(means).to(images.dtype)


def deeplift(model: nn.Module, images: Tensor, class_index: Tensor) -> Tensor:
    """Compute DeepLIFT attributions of a logit (rescale rule, baseline zero), by Captum.

    Args:
        model: network in evaluation mode whose activations are modules, each used once.
        images: (B, C, H, W).
        class_index: the class of each image, (B,).

    Returns:
        Signed maps, (B, C, H, W), that sum to the logit minus the logit of the baseline.

    Source: :cite:t:`shrikumar2017`. The baseline is zero in the units of `images`: middle grey for
    images in [-1, 1], black for images in [0, 1].
    """
    with _quiet_captum():
        from captum.attr import DeepLift

        # Captum hooks tensors: an activation that directly follows a pooling layer shares a tensor
        # with it, and would lose its rule. So each activation gets a copy of its input.
        with ExitStack() as hooks:
            for module in model.modules():
                if isinstance(module, nn.ReLU):
                    hook = module.register_forward_pre_hook(lambda _, inputs: (inputs[0].clone(),))
                    hooks.enter_context(hook)
            inputs = images.detach().requires_grad_()
            return DeepLift(model).attribute(inputs, target=class_index).detach()


@contextmanager
def _quiet_captum() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Setting forward, backward hooks")
        warnings.filterwarnings("ignore", message="IProgress not found")
        yield


# A thousand iterations sufficed for every image that was tried; the default of 200 may not.
caso_converged = partial(caso, settings=Settings(max_iterations=1000))


def _noise(images: Tensor) -> torch.Generator:
    """Return the same noise source in each call, so that a method depends on the image alone."""
    return torch.Generator(images.device).manual_seed(0)


def _smooth_loss(model: nn.Module, images: Tensor, class_index: Tensor) -> SurrogateLoss:
    return smooth_surrogate_loss(model, images, class_index, generator=_noise(images))


def _one_by_one(
    interpret: Callable[[SurrogateLoss], Interpretation],
    make: Callable[[nn.Module, Tensor, Tensor], SurrogateLoss] = surrogate_loss,
) -> Saliency:
    """Interpret images one after another, since a batch would wait for its slowest image."""

    def maps(model: nn.Module, images: Tensor, class_index: Tensor) -> Tensor:
        pairs = zip(images.split(1), class_index.split(1), strict=True)
        return torch.cat([interpret(make(model, *pair)).maps for pair in pairs])

    return maps


def sparse_choice(loss: SurrogateLoss, method: Callable[..., Interpretation]) -> Interpretation:
    """Interpret with the strength of the L1 norm that the paper's rule chooses.

    Strengths are a factor of 2 apart, since the paper's 10 can miss the range of sparsity.
    """
    return choose_lambda1(loss, method=method, factor=2.0).interpretation


SALIENCIES: dict[str, Saliency] = {
    "logit_gradient": logit_gradient,
    "absolute_gradient": lambda m, x, c: logit_gradient(m, x, c).abs(),
    "deeplift": deeplift,
    "smooth_grad": lambda m, x, c: smooth_grad(m, x, c, generator=_noise(x), method=logit_gradient),
    "integrated_gradients": integrated_gradients,
    # Without the factor x - x', which the authors of CASO leave out too.
    "path_gradients": partial(integrated_gradients, multiply_by_inputs=False),
    "loss_gradient": loss_gradient,
    "caso_dense": _one_by_one(caso_converged),
    "cafo": _one_by_one(partial(sparse_choice, method=cafo)),
    "caso": _one_by_one(partial(sparse_choice, method=caso_converged)),
    "smooth_cafo": _one_by_one(partial(sparse_choice, method=cafo), _smooth_loss),
    "smooth_caso": _one_by_one(partial(sparse_choice, method=caso_converged), _smooth_loss),
}


def saliency_maps(model: nn.Module, saliency: str) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a function from (images, class_index) to saliency summed over channels, (B, 1, H, W).

    Raises:
        UsageError: an unknown name.
    """
    check_name("saliency", saliency, SALIENCIES)
    method = SALIENCIES[saliency]
    return lambda images, class_index: method(model, images, class_index).sum(1, keepdim=True)
