"""Path counts against matrices of ones, binomial coefficients and networks filled with ones."""

import itertools

import numpy as np
import pytest
import torch
import torchvision
from torch import nn

from suite.papers.path_counts import path_counts
from tests.double_backward import Net
from tests.small_batches import left_alone


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
    [{"kernel": 2}] * 50,  # rows of Pascal's triangle
]


WEIGHT = {"weight": nn.Parameter(torch.ones(4, 4))}
UNCHANGED = "ReLU SiLU Dropout BatchNorm2d SqueezeExcitation StochasticDepth".split()


def fill_with_ones(module):
    """Replace the modules of a network, in place, so that its gradient is the path count."""
    for name, child in list(module.named_children()):
        kind = type(child).__name__
        if kind in UNCHANGED:
            setattr(module, name, nn.Identity())
        elif kind == "MaxPool2d":
            size = (child.kernel_size, child.stride, child.padding)
            setattr(module, name, nn.AvgPool2d(*size, divisor_override=1))
        elif kind == "AdaptiveAvgPool2d":
            setattr(module, name, Net(lambda m, x: x.sum((2, 3), keepdim=True)))
        elif kind in ("Conv2d", "Linear"):
            nn.init.ones_(child.weight)
            child.bias = None
        else:
            fill_with_ones(child)
    return module


class TestCounts:
    @pytest.mark.parametrize(
        ("layers", "kind"),
        [(layers, nn.Conv2d) for layers in LAYERS]
        + [(LAYERS[2], nn.MaxPool2d), (LAYERS[1], nn.AvgPool2d), (LAYERS[2], nn.AvgPool2d)],
    )
    def test_are_products_of_matrices(self, layers, kind):
        matrix, stack = np.eye(52, dtype=np.int64), nn.Sequential()
        for layer in layers:
            options = {k: (int(k != "padding"), v) for k, v in ({"stride": 1} | layer).items()}
            kernel, channels = options.pop("kernel"), (1, 1) if kind is nn.Conv2d else ()
            stack.append(kind(*channels, kernel, **options))
            matrix = connections(len(matrix), **layer) @ matrix
        counts, middle = path_counts(stack, (1, 1, 52)), len(matrix) // 2
        assert counts.dtype == torch.float64
        assert counts[0, 0].tolist() == matrix.sum(0).tolist()
        counts = path_counts(stack, (1, 1, 52), output=(0, 0, middle))
        assert counts[0, 0].tolist() == matrix[middle].tolist()

    def test_are_outer_products(self):
        stack = nn.Sequential(nn.Conv2d(1, 1, (3, 2), padding=(1, 0)), nn.Conv2d(1, 1, 3, stride=2))
        rows = connections(9, 3, stride=2) @ connections(9, 3, padding=1)
        columns = connections(9, 3, stride=2) @ connections(10, 2)
        expected = np.outer(rows.sum(0), columns.sum(0))
        assert path_counts(stack, (1, 9, 10))[0].tolist() == expected.tolist()

    def test_of_every_channel_and_group(self):
        stack = nn.Sequential(nn.Conv1d(2, 5, 3), nn.Conv1d(5, 3, 1), nn.Flatten(), nn.Linear(6, 4))
        assert path_counts(stack, (2, 4)).tolist() == [[60.0, 120.0, 120.0, 60.0]] * 2
        counts = path_counts(nn.Conv1d(3, 6, 3, groups=3), (3, 3), output=(2, 0))
        assert counts.tolist() == [[0.0] * 3, [1.0] * 3, [0.0] * 3]
        grouped = nn.Sequential(nn.Conv1d(4, 4, 1, groups=2), nn.Conv1d(4, 1, 1))
        assert path_counts(grouped, (4, 1)).tolist() == [[2.0]] * 4

    @pytest.mark.parametrize("kind", [nn.AdaptiveAvgPool1d, nn.AdaptiveMaxPool1d])
    @pytest.mark.parametrize(
        ("size", "output_size", "expected"),
        [(6, 1, [1] * 6), (6, 3, [1] * 6), (5, 3, [1, 2, 1, 2, 1]), (1, 4, [4]), (2, 4, [2, 2])],
    )
    def test_of_adaptive_pooling(self, kind, size, output_size, expected):
        assert path_counts(kind(output_size), (1, size))[0].tolist() == expected

    def test_of_pooling_in_ceil_mode(self):
        pools = [kind(2, stride=2, ceil_mode=True) for kind in (nn.MaxPool2d, nn.AvgPool2d)]
        for pool in (*pools, nn.AdaptiveAvgPool2d((None, 1))):
            assert torch.equal(path_counts(pool, (1, 3, 3))[0], ones(3, 3))
        assert path_counts(nn.MaxPool2d(2), (1, 3, 3)).sum() == 4

    def test_layers_that_count_as_identity(self):
        plain = nn.Sequential(nn.Conv2d(2, 3, 3, bias=False), nn.Conv2d(3, 2, 3, bias=False))
        first = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(inplace=True), nn.Dropout(0.5)
        second = nn.Conv2d(3, 2, 3), nn.GroupNorm(2, 2), nn.SiLU(), nn.Hardswish(), nn.PReLU()
        full = nn.Sequential(*first, *second)
        with left_alone(full):
            counts = path_counts(full, (2, 7, 6))
        assert torch.equal(counts, path_counts(plain, (2, 7, 6)))

    @pytest.mark.parametrize(
        ("function", "count"),
        [
            (lambda m, x: x.mean((2, 3)), 1),
            (lambda m, x: torch.mul((x + x).mean((2, 3), keepdim=True).sigmoid(), x), 1),
            (lambda m, x: torch.mul(x, (x + x).mean((2, 3), keepdim=True).sigmoid()), 1),
            (lambda m, x: torch.stack([x] * 11).repeat(1, 1, 1, 1, 10).sum(), 110),
            (lambda m, x: m.weight * x / 3 * 2, 1),
        ],
    )
    def test_of_means_and_gates(self, function, count):
        assert torch.equal(path_counts(Net(function, **WEIGHT), (2, 4, 4)), count * ones(2, 4, 4))

    @pytest.mark.parametrize(
        ("function", "message"),
        [
            (lambda m, x: x * x.flip(2), r"the product of two values of shape \(1, 2, 4, 4\)"),
            (lambda m, x: x @ m.weight, "got (__)?matmul"),
            (lambda m, x: x.flatten(2).softmax(2), "is not linear"),
            (lambda m, x: x.exp(), "is not linear"),
            (lambda m, x: nn.functional.max_pool1d(x[0], 2), "got max_pool1d"),
            (lambda m, x: nn.functional.max_pool2d(x, 2, dilation=2), "without dilation, got 2"),
        ],
    )
    def test_unsupported_layers_are_refused(self, function, message):
        with pytest.raises(ValueError, match=message):
            path_counts(Net(function, **WEIGHT), (2, 4, 4))

    def test_too_many_paths_are_refused(self):
        deep = nn.Sequential(*[nn.Conv1d(1000, 1000, 1, device="meta") for _ in range(110)])
        with pytest.raises(ValueError, match="fewer than 1e308 paths"):
            path_counts(deep, (1000, 1))

    @pytest.mark.parametrize("name", ["resnet18", "resnet50", "vgg11", "efficientnet_b0"])
    def test_of_known_networks(self, name):
        with torch.device("meta"):
            model = getattr(torchvision.models, name)()
        if name == "vgg11":
            model.avgpool, model.classifier = nn.AdaptiveAvgPool2d(1), nn.Identity()
        counts, x = path_counts(model, (3, 40, 40)), ones(1, 3, 40, 40).requires_grad_()
        fill_with_ones(model.to_empty(device="cpu").double().eval())(x).sum().backward()
        torch.testing.assert_close(counts, x.grad[0], rtol=1e-10, atol=0)
        assert counts.max() > 1.5 * counts.min() > 0


class TestSquared:
    @pytest.mark.parametrize(
        ("layer", "factor"),
        [(nn.ReLU(), 1 / 2), (nn.MaxPool2d(2), 1 / 4), (nn.AvgPool2d(2), 1 / 16)]
        + [(nn.AdaptiveAvgPool2d(2), 1 / 16), (nn.AdaptiveMaxPool2d(2), 1 / 4)]
        + [(Net(lambda m, x: x.mean((2, 3))), 1 / 16**2), (nn.BatchNorm2d(2), 1.0)],
    )
    def test_layers_without_weights(self, layer, factor):
        counts = path_counts(layer, (2, 4, 4), squared=True)
        torch.testing.assert_close(counts, factor * ones(2, 4, 4))

    def test_equals_sum_of_squared_gradients(self):
        x = torch.rand(1, 2, 5, 5, dtype=torch.float64, requires_grad=True)
        stack = nn.Sequential(nn.Conv2d(2, 1, 1), nn.AdaptiveAvgPool2d(3)).double()
        rows = [torch.autograd.grad(y, x, retain_graph=True)[0] for y in stack(x).flatten()]
        squares = torch.cat(rows).square().sum(0)
        counts = path_counts(stack, (2, 5, 5), squared=True)
        torch.testing.assert_close(counts.mean(0), squares.mean(0))

    def test_missing_weights_are_refused(self):
        with pytest.raises(ValueError, match=r"expected weights .* got none \(meta\)"):
            path_counts(nn.Conv1d(1, 1, 3, device="meta"), (1, 5), squared=True)
