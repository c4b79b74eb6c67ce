"""Pooling and L1 by blocks on the CPU, against torch.topk and the norm of PyTorch."""

from functools import partial

import pytest
import torch

from reglib.top_gap import blocks, class_map_l1, pooling, top_gap, top_gap_and_l1
from suite.networks import build_network
from suite.training.penalties import PENALTIES, forward
from tests.double_backward import randn


def by_torch(maps, k):
    return maps.flatten(2).topk(k, sorted=False).values.mean(2), class_map_l1(maps)


def gradient(pool, maps):
    """Differentiate the means, weighted by random numbers so that their gradients differ."""
    maps = maps.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    means = list(pool(maps))
    weights = [randn(*m.shape, seed=i + 1, dtype=m.dtype) for i, m in enumerate(means)]
    return torch.autograd.grad(means, maps, weights)[0]


CUTS = {
    "different values": lambda maps: maps,
    "many equal values": lambda maps: maps.mul(2).round(),
    "zeros": torch.zeros_like,
    "some rows equal": lambda maps: torch.where(maps[:, :, :1, :1] > 0, maps, -1.0),
}


class TestPooling:
    @pytest.mark.parametrize(
        ("dtype", "layout", "images"),
        [
            (torch.float32, torch.contiguous_format, 1),
            (torch.float64, torch.channels_last, 1),
            (torch.float64, torch.contiguous_format, 100),
            (torch.float32, torch.channels_last, 100),
        ],
    )
    @pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
    def test_values_and_gradients(self, cut, dtype, layout, images, monkeypatch):
        maps = cut(randn(5, 7, 9, 8, dtype=dtype)).contiguous(memory_format=layout)
        before = maps.clone()
        monkeypatch.setattr(blocks, "BLOCK_BYTES", images * maps[0].nbytes)
        monkeypatch.setattr(blocks, "PARTITION_BYTES", 4 * maps[0, 0].nbytes)  # of 35 rows
        for k in (1, 5, 71, 72):
            for pool, n in ((top_gap_and_l1, 2), (lambda m, k: [top_gap(m, k=k)], 1)):
                torch.testing.assert_close(tuple(pool(maps, k=k)), by_torch(maps, k)[:n])
                result = gradient(partial(pool, k=k), maps)
                expected = gradient(lambda m, k=k, n=n: by_torch(m, k)[:n], maps)
                torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-7)
                assert n == 2 or torch.equal(result != 0, expected != 0)
                assert (n, k) == (1, 72) or result.is_contiguous(memory_format=layout)
        assert torch.equal(maps, before)

    @pytest.mark.parametrize("field", [slice(1), slice(1, 2)])
    def test_gradient_of_one_field(self, field):
        maps = randn(2, 3, 4, 5)
        result = gradient(lambda m: top_gap_and_l1(m, k=4)[field], maps)
        torch.testing.assert_close(result, gradient(lambda m: by_torch(m, 4)[field], maps))

    @pytest.mark.parametrize("cut", [CUTS["different values"], CUTS["some rows equal"]])
    def test_gradients_of_gradients(self, cut):
        maps, direction = cut(randn(2, 3, 4, 4)), randn(2, 3, 4, 4, seed=5)

        def higher(pool):
            x = maps.clone().requires_grad_()
            logits, l1 = pool(x)
            value = logits.exp().sum() + (logits.square() * l1[:, None]).sum() + l1.pow(3).sum()
            results = []
            for _ in range(3):
                (value,) = torch.autograd.grad(value, x, create_graph=True)
                results.append(value)
                value = (value * direction).sum()
            return results

        expected = higher(partial(by_torch, k=5))
        torch.testing.assert_close(higher(partial(top_gap_and_l1, k=5)), expected)
        assert all(e.any() for e in expected)

    def test_constant_gradient(self):
        maps = randn(2, 3, 4, 4).requires_grad_()
        (first,) = torch.autograd.grad(top_gap_and_l1(maps, k=5).l1.sum(), maps, create_graph=True)
        assert not torch.autograd.grad(first.sum(), maps)[0].any()

    def test_batched_gradients(self):
        maps = randn(2, 3, 4, 4).requires_grad_()
        directions = torch.eye(6, dtype=maps.dtype).view(6, 2, 3)
        by = partial(torch.autograd.grad, top_gap_and_l1(maps, k=5).logits, maps, retain_graph=True)
        (together,) = by(directions, is_grads_batched=True)
        torch.testing.assert_close(together, torch.stack([by(d)[0] for d in directions]))

    def test_gradient_that_is_not_finite(self):
        def differentiate(pool):
            x = randn(1, 2, 4, 4).requires_grad_()
            return torch.autograd.grad((pool(x) * torch.tensor([[torch.inf, 1.0]])).sum(), x)[0]

        expected = differentiate(lambda x: by_torch(x, 3)[0])
        torch.testing.assert_close(differentiate(partial(top_gap, k=3)), expected)

    def test_maps_with_nan(self):
        maps = randn(2, 2, 4, 4)
        maps[0, 1, 2, 2] = torch.nan
        assert top_gap(maps, k=3).isnan().tolist() == [[False, True], [False, False]]
        result = gradient(lambda m: [top_gap(m, k=3)], maps)
        torch.testing.assert_close(result, gradient(lambda m: by_torch(m, 3)[:1], maps))

    def test_training_step_pools_once(self, monkeypatch):
        options = {"k": 0.2, "width": 6, "backbone_options": {"width": 4, "blocks": (1, 1)}}
        model = build_network("top_gap", (1, 12, 12), 3, options=options, seed=0)
        inputs, labels = randn(2, 1, 12, 12, dtype=torch.float32), torch.tensor([0, 2])

        def differentiate():
            step = forward(model, inputs, labels, torch.Generator().manual_seed(0))
            loss = step.logits.square().sum() + PENALTIES["class_map_l1"](step).mean()
            return step, torch.autograd.grad(loss, list(model.parameters()))

        step, gradients = differentiate()
        assert step.class_map_l1 is not None
        monkeypatch.setattr(blocks, "numpy", lambda: None)
        assert not pooling.can_block(inputs)
        step, expected = differentiate()
        assert step.class_map_l1 is None
        torch.testing.assert_close(gradients, expected, rtol=1e-4, atol=1e-6)
