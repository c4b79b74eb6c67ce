"""Penalties on the input gradient of the loss, of a logit, or of the log marginal density."""

import torch
from torch import Generator, Tensor, nn

from reglib import _checks
from reglib._common import cross_entropy, forward_again, label_logits, unit_length
from reglib.autodiff import input_gradient


def input_gradient_penalty(logits: Tensor, labels: Tensor, inputs: Tensor) -> Tensor:
    r"""Compute the squared norm of the input gradient of the loss (double backpropagation).

    .. math:: r_b = \left\| \nabla_{x_b} \sum_{b'} H(y_{b'}, \hat y_{b'}) \right\|_2^2

    The gradient is the gradient of the *summed* cross-entropy. If samples do not influence one
    another, it is the gradient of each sample's own loss, for any batch size. Under batch
    normalisation in training mode it includes the effect of a sample on the losses of the others.
    It is zero if and only if the loss does not change, to first order, with the input.

    Args:
        logits: output of the network for `inputs`, (B, classes).
        labels: class indices, (B,).
        inputs: images, (B, ...), that required a gradient before the forward pass.

    Returns:
        One value for each sample, (B,), that can be differentiated by the parameters.

    Raises:
        ValueError: a label is no class index, or `inputs` does not require a gradient.

    Source: equation 1 of De Moor, Gevaert, Peck and Saeys, "On the effect of gradient
    regularisation on interpretability" (2025) :cite:p:`demoor2025` (section 3.1), after Drucker and
    Le Cun, "Improving generalization performance using double backpropagation" (1992)
    :cite:p:`drucker1992`.

    >>> x = torch.zeros(1, 2, requires_grad=True)
    >>> logits = x @ torch.tensor([[2.0, 0.0], [0.0, 0.0]])
    >>> input_gradient_penalty(logits, torch.tensor([0]), x)  # gradient (-1, 0)
    tensor([1.], grad_fn=<SumBackward1>)
    """
    loss = cross_entropy(logits, labels, reduction="sum")
    gradient = input_gradient(loss, inputs, create_graph=True)
    return gradient.square().flatten(1).sum(1)


def marginal_density_penalty(
    logits: Tensor,
    inputs: Tensor,
    *,
    generator: Generator,
    implementation: str = "efficient",
    p: float = 2.0,
) -> Tensor:
    r"""Compute the norm of the input gradient of the log marginal density.

    .. math:: r_b = \bigl\| \nabla_{x_b} \textstyle\sum_{b'} \log Z(x_{b'}) \bigr\|_p, \qquad
       Z(x) = \sum_{i=1}^C e^{f_i(x)}

    Up to a constant, the log marginal density is :math:`\log Z`, the logsumexp of the logits. Its
    gradient is computed as

    .. math::
       \text{naive:} \quad & \textstyle \nabla_x \sum_i e^{f_i} \big/ \sum_i e^{f_i}
       && \text{(equation 4)} \\
       \text{stable:} \quad & \nabla_x f_i - \nabla_x \log (e^{f_i} / Z) && \text{(equation 5)} \\
       \text{efficient:} \quad & \nabla_x \bigl( f_i - \log (e^{f_i} / Z) \bigr)
       && \text{(equation 6)}

    with a random class :math:`i` for each sample. All three are the same quantity: differentiation
    is linear, so equation 6 is not an approximation of equation 5, and
    :math:`f_i - \log (e^{f_i} / Z) = \log Z` for any class. They differ in time and in rounding.

    Batch normalisation in training mode couples the samples. Then "stable" and "efficient" give the
    gradient of the *summed* log density. "naive" gives another quantity, in which each sample is
    weighted by its own :math:`Z`.

    Args:
        logits: output of the network for `inputs`, (B, classes).
        inputs: images, (B, ...), that required a gradient before the forward pass.
        generator: source of the random classes, on the device of `logits`.
        implementation: "naive", "stable" or "efficient".
        p: order of the norm, from 1 to infinity.

    Returns:
        One value for each sample, (B,), that can be differentiated by the parameters.

    Raises:
        ValueError: `p` is below 1; `implementation` is unknown; there is one class only; `inputs`
            does not require a gradient; for "naive", exponentials over- or underflow.

    Source: equations 4 to 6 of Yang, Akhtar, Shah and Mian, "Regulating model reliance on
    non-robust features by smoothing input marginal density" (2024) :cite:p:`yang2024`.

    >>> x = torch.zeros(1, 2, requires_grad=True)
    >>> logits = x @ torch.tensor([[2.0, 0.0], [0.0, 0.0]])
    >>> marginal_density_penalty(logits, x, generator=torch.Generator())  # gradient (1, 0)
    tensor([1.], grad_fn=<LinalgVectorNormBackward0>)
    """
    _checks.check_type("logits", logits, Tensor)
    _checks.check_type("generator", generator, Generator)
    if logits.ndim != 2 or logits.shape[1] < 2:
        what = "(B, classes) with at least two classes"
        raise _checks.expected("logits", what, tuple(logits.shape))
    _checks.check_choice("implementation", implementation, ("naive", "stable", "efficient"))
    if implementation == "naive":
        partition = logits.exp().sum(1)
        _check_exponentials(logits, partition)
        gradient = input_gradient(partition, inputs, create_graph=True)
        return p_norms(gradient.flatten(1) / partition[:, None], p)
    i = torch.randint(logits.shape[1], (len(logits), 1), generator=generator, device=logits.device)
    logit, log_prob = logits.gather(1, i), logits.log_softmax(1).gather(1, i)
    if implementation == "stable":
        joint = input_gradient(logit, inputs, create_graph=True)
        conditional = input_gradient(log_prob, inputs, create_graph=True)
        return p_norms(joint - conditional, p)
    return p_norms(input_gradient(logit - log_prob, inputs, create_graph=True), p)


def logit_gradient_penalty(
    logits: Tensor, labels: Tensor, inputs: Tensor, *, p: float = 2.0
) -> Tensor:
    r"""Compute the norm of the input gradient of the label's logit.

    .. math:: r_b = \bigl\| \nabla_{x_b} \textstyle\sum_{b'} f_{y_{b'}}(x_{b'}) \bigr\|_p

    In the density view, the logit is the log joint density of image and label, and the log
    conditional density of the image, up to constants. `input_gradient_penalty` is the *squared*
    norm of the gradient of the *loss*, which vanishes where the network is confident; this norm
    does not.

    Args:
        logits: output of the network for `inputs`, (B, classes).
        labels: class indices, (B,).
        inputs: images, (B, ...), that required a gradient before the forward pass.
        p: order of the norm, from 1 to infinity.

    Returns:
        One value for each sample, (B,), that can be differentiated by the parameters.

    Raises:
        ValueError: a label is no class index; `p` is below 1; `inputs` does not require a gradient.

    Source: section 6 and equation 8 of Yang, Akhtar, Shah and Mian, "Regulating model reliance on
    non-robust features by smoothing input marginal density" (2024) :cite:p:`yang2024`, who take it
    for the penalty of Drucker and Le Cun, "Improving generalization performance using double
    backpropagation" (1992) :cite:p:`drucker1992` and Ross and Doshi-Velez, "Improving the
    adversarial robustness and interpretability of deep neural networks by regularizing their input
    gradients" (2018) :cite:p:`ross2018`.
    """
    return p_norms(input_gradient(label_logits(logits, labels), inputs, create_graph=True), p)


def finite_difference_penalty(
    model: nn.Module, logits: Tensor, labels: Tensor, inputs: Tensor, *, step: float = 0.01
) -> Tensor:
    r"""Estimate the squared norm of the input gradient of the loss by a difference of two losses.

    .. math:: r_b = \left( \frac{l(x_b + h \, d_b) - l(x_b)}{h} \right)^2, \qquad
       d_b = \frac{\nabla_x l(x_b)}{\| \nabla_x l(x_b) \|_2}

    The direction :math:`d` is held constant when the penalty is differentiated, so that no second
    derivative is needed. The penalty tends to `input_gradient_penalty` for small `h`. Its finite
    step makes it depend on the curvature along the gradient too.

    Args:
        model: the network; it is called once more, and its running statistics do not change.
            Active dropout would draw another mask, which the difference would measure too: keep
            dropout in evaluation mode.
        logits: output of the network for `inputs`, (B, classes).
        labels: class indices, (B,).
        inputs: images, (B, ...), that required a gradient before the forward pass.
        step: `h`, a Euclidean length in the units of `inputs`.

    Returns:
        One value for each sample, (B,), that can be differentiated by the parameters.

    Raises:
        ValueError: `step` is not positive; a label is no class index; `inputs` does not require a
            gradient.

    Source: section 3 of Finlay and Oberman, "Scaleable input gradient regularization for
    adversarial robustness" (2021) :cite:p:`finlay2021`.

    >>> x = torch.zeros(1, 2, requires_grad=True)
    >>> linear = torch.nn.Linear(2, 2, bias=False)
    >>> linear.weight.data = torch.tensor([[2.0, 0.0], [0.0, 0.0]])
    >>> penalty = finite_difference_penalty(linear, linear(x), torch.tensor([0]), x)
    >>> bool((penalty - 1).abs() < 0.02)  # the gradient is (-1, 0)
    True
    """
    _checks.check_positive(step=step)
    loss = cross_entropy(logits, labels)
    direction = unit_length(input_gradient(loss, inputs, keep_graph=True))
    moved = forward_again(model, inputs.detach() + step * direction)
    return ((cross_entropy(moved, labels) - loss) / step).square()


def p_norms(values: Tensor, p: float) -> Tensor:
    """Return the p-norm of each sample, (B,); its gradient is zero where the norm is zero.

    Raises:
        ValueError: `p` is below 1, which gives no norm.
    """
    if not p >= 1:
        raise ValueError(f"p: expected the order of a norm, a number from 1 up, got {p}")
    return torch.linalg.vector_norm(values.flatten(1), ord=p, dim=1)


def _check_exponentials(logits: Tensor, partition: Tensor) -> None:
    """Raise a ValueError if gradients of the sums of exponentials would over- or underflow."""
    # Gradients are products of these sums with weights: a margin on both sides keeps them exact.
    info = torch.finfo(partition.dtype)
    safe = (partition > info.tiny / info.eps) & (partition < info.max * info.eps)
    wrong = logits.isfinite().all(1) & ~safe
    if _checks.may_be_read(wrong) and wrong.any():
        low, high = logits[wrong].amin(), logits[wrong].amax()
        what = f"sums of exponentials that {partition.dtype} can differentiate"
        advice = 'take implementation="stable" or "efficient"'
        raise _checks.expected("logits", what, f"logits from {low:.4g} to {high:.4g}; {advice}")
