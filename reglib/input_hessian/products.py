r"""Products with the Hessian of the cross-entropy with respect to the input."""

from typing import NamedTuple

from torch import Tensor, nn

from reglib._checks import NoDropout, check_images, check_labels, check_logits, check_network
from reglib._common import cross_entropy
from reglib.autodiff import Linearisation, Map, linearise, second_derivative
from reglib.double_backward import fast_double_backward, folding_of


class InputHessian(NamedTuple):
    r"""The derivatives of the cross-entropy of each image of a batch, to second order.

    Args:
        logits: (B, c).
        product: from vectors :math:`v` (B, C, H, W) to :math:`H v`, with the Hessian of each image.
        pull: from vectors :math:`u` (B, c) to :math:`W u`, (B, C, H, W).
    """

    logits: Tensor
    product: Map
    pull: Map

    def gradient(self, labels: Tensor) -> Tensor:
        r"""Compute the input gradient of the cross-entropy, :math:`g = W (p - y)`.

        Exact for every network. Softmax and difference are in double precision: single precision
        would lose most digits of :math:`1 - p` where the network is confident.

        Args:
            labels: class indices, (B,).

        Returns:
            The gradients, (B, C, H, W).

        Raises:
            ValueError: `labels` are no class indices.
        """
        return self.pull(logit_weights(self.logits, labels))


def closed_form_hessian(model: nn.Module, images: Tensor) -> InputHessian:
    r"""Return products with the closed-form Hessian of the cross-entropy.

    .. math:: H = W A W^T, \qquad A = \mathrm{diag}(p) - p p^T, \qquad W^T = \nabla_x f(x)

    This is the Hessian of each image's own cross-entropy, not of the mean over the batch. For a
    piecewise linear network it is exact and does not depend on the label. For other networks it is
    the Gauss-Newton part; see `input_hessian`. A product costs one Jacobian-vector and one
    vector-Jacobian product through the graph of a single forward pass, by the functions of
    `reglib.double_backward`.

    Args:
        model: network in evaluation mode, from images to logits (B, c).
        images: (B, C, H, W), in the units of the network, and in the memory layout in which it is
            fastest.

    Returns:
        Logits and products; they hold the memory of the graph.

    Raises:
        ValueError: the network is in training mode or has active dropout; images or logits are not
            finite or not a batch.

    Source: proposition 1 of Singla, Wallace, Feng and Feizi, "Understanding impacts of high-order
    loss approximations and features in deep learning interpretation" (2019) :cite:p:`singla2019`.
    """
    at = linearisation_of(model, images)
    probs = at.outputs.double().softmax(1)

    def product(v: Tensor) -> Tensor:
        return at.pull(times_covariance(probs, at.push(v)))

    return InputHessian(at.outputs, product, at.pull)


def true_hessian(model: nn.Module, images: Tensor, labels: Tensor) -> InputHessian:
    """Return products with the Hessian of the cross-entropy, by differentiating twice.

    Exact for every network that can be differentiated twice. If the network is not piecewise
    linear, the Hessian depends on the labels and can have negative eigenvalues.

    Args:
        model: network in evaluation mode, from images to logits (B, c).
        images: (B, C, H, W).
        labels: class indices, (B,).

    Returns:
        Logits and products; they hold the memory of the graphs.

    Raises:
        ValueError: as `closed_form_hessian`; `labels` are no class indices.
    """
    at = linearisation_of(model, images)
    check_labels(labels, at.outputs)

    def loss(x: Tensor) -> Tensor:
        return cross_entropy(fast_double_backward(model)(x), labels)

    return InputHessian(at.outputs, second_derivative(loss, images), at.pull)


def input_hessian(
    model: nn.Module, images: Tensor, labels: Tensor, *, closed_form: bool | None = None
) -> InputHessian:
    """Return products with the Hessian, in closed form if the network is piecewise linear.

    A network counts as piecewise linear if `nonlinear` of `folding_of` is empty. A network that
    cannot be traced counts as nonlinear, as does one with hooks or with a module whose `forward`
    was replaced.

    Args:
        model: network in evaluation mode.
        images: (B, C, H, W).
        labels: class indices, (B,).
        closed_form: take `closed_form_hessian` if true, `true_hessian` if false. None traces the
            network to decide, which takes about a second for a large network.

    Returns:
        Logits and products; they hold the memory of the graphs.

    Raises:
        ValueError: as `true_hessian`.
    """
    if closed_form is None:
        closed_form = not folding_of(model).nonlinear
    if closed_form:
        return closed_form_hessian(model, images)
    return true_hessian(model, images, labels)


def linearisation_of(model: nn.Module, images: Tensor) -> Linearisation:
    """Linearise a network at a batch of images, with checks of network, images and logits.

    Raises:
        ValueError: as `closed_form_hessian`.
    """
    check_network(model)
    check_images(images)

    def evaluate(x: Tensor) -> Tensor:
        with NoDropout():
            logits: Tensor = fast_double_backward(model)(x)
        check_logits(logits, len(x))
        return logits

    return linearise(evaluate, images)


def logit_weights(logits: Tensor, labels: Tensor) -> Tensor:
    """Compute the gradient of the cross-entropy with respect to the logits, p - y, (B, c).

    Raises:
        ValueError: `labels` are no class indices.
    """
    check_labels(labels, logits)
    others = logits.double().softmax(1).scatter(1, labels[:, None], 0)  # 1 - p would cancel
    return others.scatter(1, labels[:, None], -others.sum(1, keepdim=True)).to(logits.dtype)


def times_covariance(probs: Tensor, u: Tensor) -> Tensor:
    r"""Multiply by the covariance matrix of the one-hot label.

    .. math:: A u = p \odot (u - \langle p, u \rangle), \qquad A = \mathrm{diag}(p) - p p^T

    Args:
        probs: (B, c), in double precision, the precision of the computation.
        u: (B, c).

    Returns:
        The products, (B, c), in the type of `u`.
    """
    wide = u.to(probs.dtype)
    # Subtract the entry of the likeliest class, so that small entries do not cancel.
    wide = wide - wide.take_along_dim(probs.argmax(1, keepdim=True), 1)
    return (probs * (wide - (probs * wide).sum(1, keepdim=True))).to(u.dtype)
