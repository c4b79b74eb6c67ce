import math

import pytest
import torch

from reglib.regularizers import balancing_weights, group_dro

LOSSES = torch.tensor([1.0, 3.0, 0.5, 2.0], dtype=torch.float64)
GROUPS = torch.tensor([0, 0, 2, 2])
EQUAL = torch.full((3,), 1 / 3, dtype=torch.float64)


def test_balancing_weights():
    groups = torch.tensor([0, 1, 1, 1, 2, 2, 1, 0])
    totals = torch.zeros(3).index_add(0, groups, balancing_weights(groups, 3))
    torch.testing.assert_close(totals, torch.full((3,), 8 / 3))
    with pytest.raises(ValueError, match="of each of 3 groups, got none of group 1"):
        balancing_weights(GROUPS, 3)


class TestGroupDro:
    def test_weights_grow_with_the_losses(self):
        losses = LOSSES.clone().requires_grad_()
        loss, weights = group_dro(losses, GROUPS, EQUAL, step_size=0.1)
        grown = [math.exp(0.1 * mean) for mean in (2.0, 0.0, 1.25)]
        expected = torch.tensor(grown, dtype=torch.float64) / sum(grown)
        torch.testing.assert_close(weights, expected)
        torch.testing.assert_close(loss, 2.0 * expected[0] + 1.25 * expected[2])
        assert not weights.requires_grad
        (gradient,) = torch.autograd.grad(loss, losses)
        torch.testing.assert_close(gradient, expected[GROUPS] / 2)

    @pytest.mark.parametrize(
        ("groups", "text"),
        [
            (torch.tensor([0, -1, 2, 2]), "indices from 0 to 2, got -1; leave out"),
            (torch.tensor([0, 3, 2, 2]), "indices from 0 to 2, got 3"),
            (torch.tensor([0, 1]), r"one for each sample, got torch.int64 of shape \(2,\)"),
            (torch.tensor([0.0, 1, 2, 2]), "got torch.float32"),
        ],
    )
    def test_samples_without_a_group(self, groups, text):
        with pytest.raises(ValueError, match=f"groups: expected .*{text}"):
            group_dro(LOSSES, groups, EQUAL, step_size=0.1)

    def test_step_that_is_not_positive(self):
        with pytest.raises(ValueError, match="step_size: expected a positive number, got 0"):
            group_dro(LOSSES, GROUPS, EQUAL, step_size=0)
