"""Path counts against matrices of ones, binomial coefficients and networks filled with ones."""

import itertools
import math

import numpy as np
import pytest
import torch
import torchvision
from torch import nn

from suite.papers.path_counts import path_counts


def ones(*shape):
    return torch.ones(shape, dtype=torch.float64)


def connections(size, kernel, stride=1, padding=0, dilation=1):
    """Build the matrix (outputs, inputs) with a one where a layer connects two positions."""
    outputs = (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    matrix = np.zeros((outputs, size), dtype=np.int64)
    for j, k in itertools.product(range(outputs), range(kernel)):
        i = j * stride - padding + k * dilation
        if 0 <= i < size:
            matrix[j, i] += 1
    return matrix


LAYERS = [
    [{"kernel": 3}, {"kernel": 3}],
    [{"kernel": 2}, {"kernel": 5, "padding": 2}, {"kernel": 3}],
    [{"kernel": 3, "stride": 2}, {"kernel": 3, "stride": 2, "padding": 1}],
    [{"kernel": 3, "dilation": 2}, {"kernel": 2, "dilation": 3, "padding": 3}],
    [{"kernel": 1, "stride": 2}, {"kernel": 3, "padding": 1}],
]


class Residual(nn.Conv1d):
    def forward(self, x):
        return x + super().forward(x)


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.ones(4, 4))

    def forward(self, x):
        return self.function(self, x)


UNCHANGED = "ReLU SiLU Dropout BatchNorm2d SqueezeExcitation StochasticDepth".split()


def filled_with_ones(module):
    """Make a network whose gradient is the path count, by replacing its modules."""
    for name, child in list(module.named_children()):
        kind = type(child).__name__
        if kind in UNCHANGED:
            setattr(module, name, nn.Identity())
        elif kind == "MaxPool2d":
            size = (child.kernel_size, child.stride, child.padding)
            setattr(module, name, nn.AvgPool2d(*size, divisor_override=1))
        elif kind == "AdaptiveAvgPool2d":
            setattr(module, name, Function(lambda m, x: x.sum((2, 3), keepdim=True)))
        elif kind in ("Conv2d", "Linear"):
            nn.init.ones_(child.weight)
            child.bias = None
        else:
            filled_with_ones(child)
    return module


class TestCounts:
    @pytest.mark.parametrize(
        ("layers", "kind"),
        [
            *((layers, nn.Conv1d) for layers in LAYERS),
            (LAYERS[2], nn.MaxPool1d),
            (LAYERS[1], nn.AvgPool1d),
            (LAYERS[2], nn.AvgPool1d),
        ],
    )
    def test_are_products_of_matrices(self, layers, kind):
        size, matrix, stack = 13, np.eye(13, dtype=np.int64), []
        for layer in layers:
            options = {"stride": 1} | {k: v for k, v in layer.items() if k != "kernel"}
            channels = (1, 1) if kind is nn.Conv1d else ()
            stack.append(kind(*channels, layer["kernel"], **options))
            matrix = connections(len(matrix), **layer) @ matrix
        counts = path_counts(nn.Sequential(*stack), (1, size))
        assert counts.dtype == torch.float64
        assert counts[0].tolist() == matrix.sum(0).tolist()
        middle = len(matrix) // 2
        counts = path_counts(nn.Sequential(*stack), (1, size), output=(0, middle))
        assert counts[0].tolist() == matrix[middle].tolist()

    @pytest.mark.parametrize(("depth", "width"), [(4, 3), (6, 2), (50, 2)])
    def test_are_rows_of_pascals_triangle(self, depth, width):
        size = depth * (width - 1) + 1
        stack = nn.Sequential(*[nn.Conv1d(1, 1, width) for _ in range(depth)])
        row = (np.poly1d([1] * width) ** depth).coeffs
        assert path_counts(stack, (1, size))[0].tolist() == row.tolist()

    def test_are_outer_products(self):
        stack = nn.Sequential(nn.Conv2d(1, 1, (3, 2), padding=(1, 0)), nn.Conv2d(1, 1, 3, stride=2))
        rows = connections(9, 3, stride=2) @ connections(9, 3, padding=1)
        columns = connections(9, 3, stride=2) @ connections(10, 2)
        expected = np.outer(rows.sum(0), columns.sum(0))
        assert path_counts(stack, (1, 9, 10))[0].tolist() == expected.tolist()

    def test_of_every_channel_and_group(self):
        stack = nn.Sequential(nn.Conv1d(2, 5, 3), nn.Conv1d(5, 3, 1), nn.Flatten(), nn.Linear(6, 4))
        assert path_counts(stack, (2, 4)).tolist() == [[60.0, 120.0, 120.0, 60.0]] * 2
        depthwise = nn.Conv1d(3, 6, 3, groups=3)
        counts = path_counts(depthwise, (3, 3), output=(2, 0))
        assert counts.tolist() == [[0.0] * 3, [1.0] * 3, [0.0] * 3]
        grouped = nn.Sequential(nn.Conv1d(4, 4, 1, groups=2), nn.Conv1d(4, 1, 1))
        assert path_counts(grouped, (4, 1)).tolist() == [[2.0]] * 4

    def test_identity_shortcuts_mix_depths(self):
        depth = 4
        stack = nn.Sequential(*[Residual(1, 1, 3, padding=1) for _ in range(depth)])
        counts = path_counts(stack, (1, 9), output=(0, depth))[0].tolist()
        assert counts == [math.comb(2 * depth, i) for i in range(9)]
        of_all_outputs = path_counts(stack, (1, 17))[0]
        assert set(of_all_outputs[depth:-depth].tolist()) == {4.0**depth}

    @pytest.mark.parametrize("kind", [nn.AdaptiveAvgPool1d, nn.AdaptiveMaxPool1d])
    @pytest.mark.parametrize(
        ("size", "wanted", "expected"),
        [(6, 1, [1] * 6), (6, 3, [1] * 6), (5, 3, [1, 2, 1, 2, 1]), (1, 4, [4]), (2, 4, [2, 2])],
    )
    def test_of_adaptive_pooling(self, kind, size, wanted, expected):
        assert path_counts(kind(wanted), (1, size))[0].tolist() == expected

    def test_of_pooling_in_ceil_mode(self):
        for kind in (nn.MaxPool2d, nn.AvgPool2d):
            counts = path_counts(kind(2, stride=2, ceil_mode=True), (1, 3, 3))
            assert torch.equal(counts[0], ones(3, 3))
            assert path_counts(kind(2), (1, 3, 3)).sum() == 4
        assert torch.equal(path_counts(nn.AdaptiveAvgPool2d((None, 1)), (1, 3, 4))[0], ones(3, 4))

    def test_what_counts_as_identity(self):
        plain = nn.Sequential(nn.Conv2d(2, 3, 3, bias=False), nn.Conv2d(3, 2, 3, bias=False))
        full = nn.Sequential(
            nn.Conv2d(2, 3, 3),
            nn.BatchNorm2d(3),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
            nn.Conv2d(3, 2, 3),
            nn.GroupNorm(2, 2),
            nn.SiLU(),
            nn.Hardswish(),
            nn.PReLU(),
        )
        state = {name: value.clone() for name, value in full.state_dict().items()}
        random = torch.get_rng_state()
        assert torch.equal(path_counts(full, (2, 7, 6)), path_counts(plain, (2, 7, 6)))
        assert all(torch.equal(value, state[name]) for name, value in full.state_dict().items())
        assert all(module.training for module in full.modules())
        assert all(p.grad is None for p in full.parameters())
        assert torch.equal(torch.get_rng_state(), random)

    def test_of_means_and_gates(self):
        assert torch.equal(
            path_counts(Function(lambda m, x: x.mean((2, 3))), (2, 4, 4)), ones(2, 4, 4)
        )
        for order in (1, -1):
            gate = Function(
                lambda m, x, order=order: torch.mul(
                    *[(x + x).mean((2, 3), keepdim=True).sigmoid(), x][::order]
                )
            )
            assert torch.equal(path_counts(gate, (2, 4, 4)), ones(2, 4, 4))
        many = Function(lambda m, x: torch.stack([x] * 11).repeat(1, 1, 1, 1, 10).sum())
        assert torch.equal(path_counts(many, (2, 4, 4)), 110 * ones(2, 4, 4))
        scale = Function(lambda m, x: m.weight * x / 3 * 2)
        assert torch.equal(path_counts(scale, (2, 4, 4)), ones(2, 4, 4))

    @pytest.mark.parametrize(
        ("function", "message"),
        [
            (lambda m, x: x * x.flip(2), r"the product of two values of shape \(1, 2, 4, 4\)"),
            (lambda m, x: x @ m.weight, "got (__)?matmul"),
            (lambda m, x: x.flatten(2).softmax(2), "is not linear"),
            (lambda m, x: x.exp(), "is not linear"),
            (lambda m, x: nn.functional.max_pool2d(x, 2, dilation=2), "without dilation, got 2"),
        ],
    )
    def test_what_is_refused(self, function, message):
        with pytest.raises(ValueError, match=message):
            path_counts(Function(function), (2, 4, 4))

    def test_too_many_paths_are_refused(self):
        deep = nn.Sequential(*[nn.Conv1d(1000, 1000, 1, device="meta") for _ in range(110)])
        with pytest.raises(ValueError, match="fewer than 1e308 paths"):
            path_counts(deep, (1000, 1))

    @pytest.mark.parametrize("name", ["resnet18", "resnet50", "vgg11", "efficientnet_b0"])
    def test_of_known_networks(self, name):
        size = 40
        with torch.device("meta"):
            model = getattr(torchvision.models, name)()
        if name == "vgg11":
            model.avgpool, model.classifier = nn.AdaptiveAvgPool2d(1), nn.Identity()
        counts = path_counts(model, (3, size, size))
        x = ones(1, 3, size, size).requires_grad_()
        filled = filled_with_ones(model.to_empty(device="cpu").double().eval())
        filled(x).sum().backward()
        torch.testing.assert_close(counts, x.grad[0], rtol=1e-10, atol=0)
        assert counts.max() > 1.5 * counts.min() > 0


class TestSquared:
    @pytest.mark.parametrize(
        ("layer", "factor"),
        [
            (nn.ReLU(), 1 / 2),
            (nn.MaxPool2d(2), 1 / 4),
            (nn.AvgPool2d(2), 1 / 16),
            (nn.AdaptiveAvgPool2d(2), 1 / 16),
            (nn.AdaptiveMaxPool2d(2), 1 / 4),
            (Function(lambda m, x: x.mean((2, 3))), 1 / 16**2),
            (nn.BatchNorm2d(2), 1.0),
        ],
    )
    def test_a_layer_without_weights_counts_with_its_expected_square(self, layer, factor):
        counts = path_counts(layer, (2, 4, 4), squared=True)
        torch.testing.assert_close(counts, factor * ones(2, 4, 4))

    def test_is_the_sum_of_squared_gradients(self):
        x = torch.rand(1, 2, 5, 5, dtype=torch.float64, requires_grad=True)
        stack = nn.Sequential(nn.Conv2d(2, 1, 1), nn.AdaptiveAvgPool2d(3)).double()
        squares = sum(
            torch.autograd.grad(y, x, retain_graph=True)[0].square() for y in stack(x).flatten()
        )
        counts = path_counts(stack, (2, 5, 5), squared=True)
        torch.testing.assert_close(counts.mean(0), squares[0].mean(0))

    def test_weights_are_needed(self):
        with pytest.raises(ValueError, match=r"expected weights .* got none \(meta\)"):
            path_counts(nn.Conv1d(1, 1, 3, device="meta"), (1, 5), squared=True)
