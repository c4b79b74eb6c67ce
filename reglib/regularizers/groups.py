"""Training for the worst group: Group DRO, and weights that make groups equally frequent."""

from typing import NamedTuple

import torch
from torch import Tensor

from reglib._checks import check_indices, check_positive, expected


class GroupDRO(NamedTuple):
    """The loss to minimise, and the group weights (groups,) for the next step."""

    loss: Tensor
    weights: Tensor


def group_dro(losses: Tensor, groups: Tensor, weights: Tensor, *, step_size: float) -> GroupDRO:
    r"""Weigh the losses of groups by weights that grow with them (Group DRO).

    .. math:: q_g \leftarrow \frac{q_g \, e^{\eta \bar l_g}}{\sum_{g'} q_{g'} e^{\eta \bar l_{g'}}},
       \qquad \text{loss} = \sum_g q_g \, \bar l_g

    with :math:`\bar l_g` the mean loss of the samples of group `g` in the batch, zero for a group
    that has none there.

    Args:
        losses: of each sample, (B,).
        groups: group of each sample, (B,), integers below the number of groups.
        weights: :math:`q` of the last step, (groups,); begin with equal ones that sum to 1.
        step_size: :math:`\eta`.

    Returns:
        The loss, a scalar that can be differentiated, and the new weights, without a graph.

    Raises:
        ValueError: a sample without a group, or a `step_size` that is not positive.

    Source: algorithm 1 of Sagawa, Koh, Hashimoto and Liang, "Distributionally robust neural
    networks for group shifts" (2020) :cite:p:`sagawa2020`, whose program takes 0.01 for
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

    As probabilities of drawing samples (with replacement) they make batches in which the groups are
    equally frequent; as factors of losses they do so in expectation.

    Args:
        groups: group of each sample, (N,), integers below `n_groups`.
        n_groups: number of groups, `G`.

    Raises:
        ValueError: a sample without a group, or a group without samples.

    >>> balancing_weights(torch.tensor([0, 0, 0, 1]), 2)
    tensor([0.6667, 0.6667, 0.6667, 2.0000])
    """
    counts = count_groups(groups, len(groups), n_groups)
    return (len(groups) / (n_groups * counts))[groups]


def count_groups(groups: Tensor, n_samples: int, n_groups: int) -> Tensor:
    """Return the number of samples of each group, or raise a ValueError where it has none."""
    check_indices("groups", groups, n_samples, n_groups)
    counts = groups.bincount(minlength=n_groups)
    empty = (counts == 0).nonzero()[:, 0].tolist()
    if empty:
        what = f"samples of each of {n_groups} groups"
        raise expected("groups", what, f"none of group {empty[0]}")
    return counts
