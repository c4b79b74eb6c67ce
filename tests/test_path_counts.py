"""Path counts against matrices of ones, Pascal's triangle and networks filled with ones."""

import itertools
import math

import numpy as np
import pytest
import torch
import torchvision
from torch import nn

from suite.networks import BasicBlock
from suite.papers.path_counts import normal_distance, pascal_row, path_counts


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


def filled_with_ones(module):
    """Make a network whose gradient is the path count, by replacing its modules."""
    for name, child in list(module.named_children()):
        kind = type(child).__name__
        if kind in (
            "ReLU",
            "SiLU",
            "Dropout",
            "BatchNorm2d",
            "SqueezeExcitation",
            "StochasticDepth",
        ):
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

    @pytest.mark.parametrize(("depth", "width"), [(1, 3), (4, 3), (3, 5), (6, 2), (50, 2)])
    def test_are_rows_of_pascals_triangle(self, depth, width):
        size = depth * (width - 1) + 1
        stack = nn.Sequential(*[nn.Conv1d(1, 1, width) for _ in range(depth)])
        assert path_counts(stack, (1, size))[0].tolist() == [
            float(n) for n in pascal_row(depth, width)
        ]

    def test_are_outer_products(self):
        stack = nn.Sequential(nn.Conv2d(1, 1, (3, 2), padding=(1, 0)), nn.Conv2d(1, 1, 3, stride=2))
        rows = connections(9, 3, stride=2) @ connections(9, 3, padding=1)
        columns = connections(9, 3, stride=2) @ connections(10, 2)
        expected = np.outer(rows.sum(0), columns.sum(0))
        assert path_counts(stack, (1, 9, 10))[0].tolist() == expected.tolist()

    def test_of_every_channel(self):
        stack = nn.Sequential(nn.Conv1d(2, 5, 3), nn.Conv1d(5, 3, 1), nn.Flatten(), nn.Linear(6, 4))
        assert path_counts(stack, (2, 4)).tolist() == [[60.0, 120.0, 120.0, 60.0]] * 2

    def test_groups_keep_channels_apart(self):
        depthwise = nn.Conv1d(3, 6, 3, groups=3)
        counts = path_counts(depthwise, (3, 3), output=(2, 0))
        assert counts.tolist() == [[0.0] * 3, [1.0] * 3, [0.0] * 3]
        assert path_counts(
            nn.Conv1d(4, 2, 1, groups=2), (4, 1), output=(0, 0)
        ).flatten().tolist() == [1.0, 1.0, 0.0, 0.0]
        grouped = nn.Sequential(nn.Conv1d(4, 4, 1, groups=2), nn.Conv1d(4, 1, 1))
        assert path_counts(grouped, (4, 1)).tolist() == [[2.0]] * 4

    @pytest.mark.parametrize("stride", [1, 2])
    def test_shortcut_adds_its_paths(self, stride):
        block = BasicBlock(1, 1 if stride == 1 else 2, stride)
        width = 1 if stride == 1 else 2
        rows = connections(8 // stride, 3, padding=1) @ connections(8, 3, stride, padding=1)
        columns = connections(7 if stride == 1 else 4, 3, padding=1) @ connections(7, 3, stride, 1)
        shortcut = np.outer(connections(8, 1, stride).sum(0), connections(7, 1, stride).sum(0))
        expected = width**2 * np.outer(rows.sum(0), columns.sum(0)) + width * shortcut
        assert path_counts(block, (1, 8, 7))[0].tolist() == expected.tolist()

    def test_identity_shortcuts_mix_depths(self):
        depth, size = 4, 9
        stack = nn.Sequential(*[Residual(1, 1, 3, padding=1) for _ in range(depth)])
        rows = [[0] * (depth - d) + pascal_row(d, 3) + [0] * (depth - d) for d in range(depth + 1)]
        mixed = [
            sum(math.comb(depth, d) * row[i] for d, row in enumerate(rows)) for i in range(size)
        ]
        counts = path_counts(stack, (1, size), output=(0, depth))[0].tolist()
        assert counts == mixed == pascal_row(2 * depth)
        added = [all_ - own for all_, own in zip(counts, pascal_row(depth, 3))]
        assert added == [0, 4, 18, 40, 51, 40, 18, 4, 0]
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
            (lambda m, x: torch.stack([x] * 11).repeat(1, 1, 1, 1, 10).sum(), None),
        ],
    )
    def test_what_is_refused(self, function, message):
        if message is None:
            assert torch.equal(path_counts(Function(function), (2, 4, 4)), 110 * ones(2, 4, 4))
            return
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
    def test_a_layer_counts_with_the_mean_square_of_its_weights(self):
        stack = nn.Sequential(nn.Conv1d(2, 3, 3), nn.Conv1d(3, 2, 2, groups=1)).double()
        factor = math.prod(float(layer.weight.detach().square().mean()) for layer in stack)
        expected = factor * path_counts(stack, (2, 6))
        torch.testing.assert_close(path_counts(stack, (2, 6), squared=True), expected)

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

    def test_averages_are_what_their_gradient_says(self):
        x = torch.rand(1, 2, 5, 5, dtype=torch.float64, requires_grad=True)
        pool = nn.AdaptiveAvgPool2d(3)
        squares = sum(
            torch.autograd.grad(y, x, retain_graph=True)[0].square() for y in pool(x).flatten()
        )
        torch.testing.assert_close(path_counts(pool, (2, 5, 5), squared=True), squares[0])

    def test_weights_are_needed(self):
        with pytest.raises(ValueError, match=r"expected weights .* got none \(meta\)"):
            path_counts(nn.Conv1d(1, 1, 3, device="meta"), (1, 5), squared=True)


class TestPascal:
    def test_is_that_of_binomial_coefficients(self):
        for depth in (0, 1, 7, 100):
            assert pascal_row(depth) == [math.comb(depth, i) for i in range(depth + 1)]

    @pytest.mark.parametrize("width", [1, 3, 4])
    def test_has_the_multinomial_sum(self, width):
        assert sum(pascal_row(5, width)) == width**5
        assert pascal_row(5, width) == np.poly1d([1] * width).__pow__(5).coeffs.tolist()

    @pytest.mark.parametrize("arguments", [(-1, 2), (2, 0)])
    def test_refuses_what_has_no_row(self, arguments):
        with pytest.raises(ValueError, match="expected depth >= 0 and width >= 1"):
            pascal_row(*arguments)


class TestNormalDistance:
    def test_of_one_layer(self):
        beside, middle = (
            math.exp(-(d**2) / (4 / 3)) / math.sqrt(2 * math.pi * 2 / 3) for d in (1, 0)
        )
        expected = (2 * abs(1 / 3 - beside) + abs(1 / 3 - middle)) / 2
        assert normal_distance(1, 3) == pytest.approx(expected, rel=1e-12)

    @pytest.mark.parametrize("arguments", [(0, 3), (3, 1)])
    def test_refuses_what_has_no_spread(self, arguments):
        with pytest.raises(ValueError, match="expected depth >= 1 and width >= 2"):
            normal_distance(*arguments)
