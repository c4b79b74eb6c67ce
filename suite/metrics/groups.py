"""How well does a network do on its worst group?"""

from torch import Tensor

from reglib.regularizers.groups import count_groups


def group_accuracies(correct: Tensor, groups: Tensor, n_groups: int) -> Tensor:
    """Compute the accuracy within each group.

    The worst-group accuracy is the smallest of them; the overall accuracy is `correct.mean()`.

    Args:
        correct: 1 where an image is classified right, else 0, (B,).
        groups: group of each image, (B,), integers below `n_groups`.
        n_groups: number of groups.

    Returns:
        One value in [0, 1] for each group, (n_groups,).

    Raises:
        ValueError: an image without a group, or a group without images.

    Source: :cite:t:`sagawa2020`.

    >>> import torch
    >>> group_accuracies(torch.tensor([1.0, 0.0, 1.0]), torch.tensor([0, 0, 1]), 2).amin()
    tensor(0.5000)
    """
    counts = count_groups(groups, len(correct), n_groups)
    return correct.new_zeros(n_groups).index_add(0, groups, correct) / counts
