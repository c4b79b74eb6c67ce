"""Training for the worst group: Group DRO, and weights that balance the groups."""

from typing import NamedTuple

import torch
from torch import Tensor

from reglib._checks import check_indices, check_positive, expected


class GroupDRO(NamedTuple):
    """The loss to minimise, a scalar, and the group weights for the next step, (groups,)."""

    loss: Tensor
    weights: Tensor


def group_dro(losses: Tensor, groups: Tensor, weights: Tensor, *, step_size: float) -> GroupDRO:
    r"""Weight the losses of groups by weights that grow with these losses (Group DRO).

    .. math:: q_g \leftarrow \frac{q_g \, e^{\eta \bar l_g}}{\sum_{g'} q_{g'} e^{\eta \bar l_{g'}}},
       \qquad \text{loss} = \sum_g q_g \, \bar l_g

    where :math:`\bar l_g` is the mean loss of the samples of group `g` in the batch, or zero if the
    batch has none.

    Args:
        losses: loss of each sample, (B,).
        groups: group of each sample, (B,), integers below the number of groups.
        weights: :math:`q` of the last step, (groups,); start with equal weights that sum to 1.
        step_size: :math:`\eta`.

    Returns:
        The loss, a scalar that can be differentiated, and the new weights, without a graph.

    Raises:
        ValueError: a sample has no group, or `step_size` is not positive.

    Source: algorithm 1 of Sagawa, Koh, Hashimoto and Liang, "Distributionally robust neural
    networks for group shifts" (2020) :cite:p:`sagawa2020`, whose program uses 0.01 for
    :math:`\eta`.

    >>> losses, groups = torch.tensor([1.0, 3.0, 2.0]), torch.tensor([0, 0, 1])
    >>> group_dro(losses, groups, torch.tensor([0.5, 0.5]), step_size=1.0).loss
    tensor(2.)
    """
    check_positive(step_size=step_size)
    check_indices("groups", groups, len(losses), len(weights))
    sums = torch.zeros_like(weights, dtype=losses.dtype).index_add(0, groups, losses)
    counts = groups.new_zeros(len(weights)).index_add(0, groups, torch.ones_like(groups))
    means = sums / counts.clamp_min(1)
    weights = (weights.log() + step_size * means.detach()).softmax(0)
    return GroupDRO((weights * means).sum(), weights)


def balancing_weights(groups: Tensor, n_groups: int) -> Tensor:
    r"""Return a weight for each sample that gives all groups the same total.

    .. math:: w_b = \frac{N}{G \, N_{g_b}}, \qquad \textstyle \sum_b w_b = N

    As probabilities of drawing samples (with replacement) they make all groups equally frequent in
    a batch, on average. As factors of losses they give all groups the same total weight.

    Args:
        groups: group of each sample, (N,), integers below `n_groups`.
        n_groups: number of groups, `G`.

    Returns:
        The weights, (N,).

    Raises:
        ValueError: a sample has no group, or a group has no samples.

    >>> balancing_weights(torch.tensor([0, 0, 0, 1]), 2)
    tensor([0.6667, 0.6667, 0.6667, 2.0000])
    """
    counts = count_groups(groups, len(groups), n_groups)
    return (len(groups) / (n_groups * counts))[groups]


def count_groups(groups: Tensor, n_samples: int, n_groups: int) -> Tensor:
    """Count the samples of each group; raise a ValueError if a group has none."""
    check_indices("groups", groups, n_samples, n_groups)
    counts = groups.bincount(minlength=n_groups)
    empty = (counts == 0).nonzero()[:, 0].tolist()
    if empty:
        what = f"samples of each of {n_groups} groups"
        raise expected("groups", what, f"none of group {empty[0]}")
    return counts
