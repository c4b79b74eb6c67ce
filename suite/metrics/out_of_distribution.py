"""Detecting out-of-distribution images by the network's output."""

from collections.abc import Callable

import torch
from torch import Tensor

from suite.errors import expected

# Scores (B, k) from logits (B, classes); higher for known images.
OOD_SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "log_density": lambda logits: logits.logsumexp(1, keepdim=True),
    "logit": lambda logits: logits,
    "max_probability": lambda logits: logits.softmax(1).amax(1, keepdim=True),
}


def auroc(known: Tensor, unfamiliar: Tensor) -> Tensor:
    r"""Compute, for each known score, the share of out-of-distribution scores below it.

    .. math:: \frac 1 M \sum_{m=1}^M \bigl( [s_b > t_m] + \tfrac 1 2 [s_b = t_m] \bigr)

    The mean over the known images is the area under the receiver operating characteristic of a
    detector that calls an image known if its score is high. It is 1 for perfect detection, 1/2 for
    none, and below 1/2 if out-of-distribution images tend to have higher scores.

    Args:
        known: scores of images of the data set that the network was trained on, (B,).
        unfamiliar: scores of out-of-distribution images, (M,).

    Returns:
        One value in [0, 1] for each known image, (B,).

    Raises:
        UsageError: no scores, or scores that are not numbers.

    Source: the measure of :cite:t:`hendrycks2017`.

    >>> auroc(torch.tensor([1.0, 3.0]), torch.tensor([0.0, 1.0, 2.0, 2.5])).mean()
    tensor(0.6875)
    """
    for name, scores in {"known": known, "unfamiliar": unfamiliar}.items():
        if scores.ndim != 1 or len(scores) == 0 or bool(scores.isnan().any()):
            got = f"shape {tuple(scores.shape)} with {int(scores.isnan().sum())} NaN"
            raise expected(name, "scores of shape (B,) that are numbers, at least one", got)
    ordered = unfamiliar.sort().values
    known = known.contiguous()
    below = torch.searchsorted(ordered, known, right=False)
    not_above = torch.searchsorted(ordered, known, right=True)
    return (below + not_above) / (2 * len(unfamiliar))


def mean_auroc(known: Tensor, unfamiliar: Tensor) -> Tensor:
    r"""Compute `auroc` with one score at a time, and average over the scores.

    .. math:: \frac 1 k \sum_{i=1}^k \mathrm{auroc}(f_i(x_b), f_i)

    Where the scores are logits, a known image of another class than `i` has a low :math:`f_i`. If
    the network is sure, it is lower than for most unfamiliar images, so good classifiers can have
    values below 1/2.

    Args:
        known: scores, (B, k).
        unfamiliar: scores, (M, k).

    Returns:
        One value for each known image, (B,).

    Source: :math:`f_i(x; \theta)` in table 6 of :cite:t:`yang2024`, as we read "for a specific
    label y = i".
    """
    pairs = zip(known.unbind(1), unfamiliar.unbind(1), strict=True)
    return torch.stack([auroc(*pair) for pair in pairs]).mean(0)
