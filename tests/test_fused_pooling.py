"""The Triton kernel of Top-GAP and L1, against sorting in float64.

The kernel runs on a CUDA device, and everywhere else in Triton's interpreter, which has to be
chosen before Triton is imported: one test runs this file once more in a process of its own.
"""

import os
import subprocess
import sys
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from reglib.top_gap import TopGAP, blocks, class_map_l1, fused, pooling, top_gap, top_gap_and_l1
from suite.networks import build_network
from suite.training import penalties as steps
from suite.training.penalties import PENALTIES, forward

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"


def random(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def by_sorting(maps, k):
    """Return both means of each map; the first of equal values count."""
    values = maps.double().flatten(2)
    # On CUDA a NaN whose sign bit is set may be sorted last.
    ordered = values.cpu().sort(dim=2, descending=True, stable=True).values.to(values.device)
    return ordered[:, :, :k].mean(2), values.abs().mean(2)


def with_gradient(pool, maps):
    maps = maps.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    means = pool(maps)
    weights = random(*means[0].shape, seed=1), random(*means[0].shape, seed=2)
    total = sum((m.double() * w).sum() for m, w in zip(means, weights))
    (gradient,) = torch.autograd.grad(total, maps)
    return [m.double() for m in means], gradient


def assert_same(maps, k, **tolerance):
    means, gradient = with_gradient(lambda m: fused.fused_means(m, k), maps)
    expected, expected_gradient = with_gradient(lambda m: by_sorting(m, k), maps)
    tolerance = tolerance or {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(means, list(expected), **tolerance, equal_nan=True)
    torch.testing.assert_close(gradient, expected_gradient, **tolerance)
    return gradient


CUTS = {
    "different values": lambda maps: maps,
    "negative values": lambda maps: -maps.abs() - 1,
    "many equal values": lambda maps: maps.mul(2).round(),
    "all equal": lambda maps: torch.full_like(maps, -2.5),
    "zeros of both signs": lambda maps: torch.copysign(torch.zeros_like(maps), maps),
    "few zeros of both signs": lambda maps: torch.where(maps.abs() > 0.5, maps, 0.0 * maps),
    "of any size": lambda maps: maps.sign() * (60 * maps).exp().clamp(max=1e30),
}


def counted(monkeypatch):
    calls, launch = [], fused._launch

    def count(kernel, *arguments, **options):
        calls.append(kernel)
        launch(kernel, *arguments, **options)

    monkeypatch.setattr(fused, "_launch", count)
    return calls


@pytest.mark.gpu
class TestKernel:
    @pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
    def test_means_and_gradients(self, cut):
        maps = cut(random(1, 2, 5, 7))
        for k in (1, 11, 35):
            assert_same(maps, k)

    @pytest.mark.parametrize("size", [(1, 1), (9, 1), (1, 2), (8, 4), (16, 17), (64, 64)])
    def test_shapes_of_maps(self, size):
        assert size[0] * size[1] <= fused.LARGEST_MAP
        assert_same(random(1, 2, *size), (size[0] * size[1] + 1) // 2)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision(self, dtype):
        maps = random(2, 1, 6, 6, dtype=dtype)
        maps[0] = maps[0].mul(2).round()
        eps = torch.finfo(dtype).eps
        for k in (7, 36):
            assert assert_same(maps, k, rtol=2 * eps, atol=eps / 2).dtype == dtype
            logits, sizes = fused.fused_means(maps, k)
            assert (logits.dtype, sizes.dtype) == (dtype, torch.float32)

    def test_any_layout(self):
        maps = random(2, 2, 5, 6)
        last = maps.contiguous(memory_format=torch.channels_last)
        assert assert_same(last, 4).is_contiguous(memory_format=torch.channels_last)
        part, repeated = random(4, 2, 9, 8)[::2, :, 1:6, :6], maps[:1].expand(3, -1, -1, -1)
        for strided in (part, maps.transpose(2, 3), repeated):
            assert_same(strided, 4)

    def test_maps_that_are_not_finite(self):
        maps = random(4, 2, 3, 5)
        maps[0, 1, 2, 2] = torch.nan
        maps[1, 0, 1, 1], maps[1, 1, 0, 0] = torch.inf, -torch.inf
        maps[2, 0, 0, :3] = torch.inf
        maps[3, 0, 0, 0] = -torch.tensor(torch.nan)  # its sign bit is set
        before = maps.clone()
        for k in (1, 2, 15):
            means, expected = fused.fused_means(maps, k), by_sorting(maps, k)
            torch.testing.assert_close([m.double() for m in means], list(expected), equal_nan=True)
        torch.testing.assert_close(maps, before, rtol=0, atol=0, equal_nan=True)

    @pytest.mark.parametrize("cut", [CUTS["different values"], CUTS["many equal values"]])
    def test_gradients_of_gradients(self, cut):
        maps, direction = cut(random(2, 2, 4, 4)), random(2, 2, 4, 4, seed=1)

        def second(pool):
            x = maps.clone().requires_grad_()
            means, sizes = pool(x, 5)
            total = means.exp().sum() + (means * sizes).sum() + sizes.square().sum()
            (first,) = torch.autograd.grad(total, x, create_graph=True)
            return first, *torch.autograd.grad((first * direction).square().sum(), x)

        expected = second(by_sorting)
        torch.testing.assert_close(second(fused.fused_means), expected, rtol=1e-4, atol=1e-5)

    def test_batched_gradients(self):
        maps = random(1, 3, 4, 4).requires_grad_()
        directions = torch.eye(3, device=DEVICE).view(3, 1, 3)
        for means in fused.fused_means(maps, 5):
            by = partial(torch.autograd.grad, means, maps, retain_graph=True)
            (together,) = by(directions, is_grads_batched=True)
            torch.testing.assert_close(together, torch.stack([by(d)[0] for d in directions]))

    def test_logits_and_l1_at_once(self, monkeypatch):
        def by_pytorch(maps):
            maps = maps.double()
            return top_gap(maps, k=0.3), class_map_l1(maps)[:, None].expand(2, 3)

        def at_once(maps):
            pooled = top_gap_and_l1(maps, k=0.3)
            return pooled.logits, pooled.l1[:, None].expand(2, 3)

        maps = random(2, 3, 6, 5)
        expected = with_gradient(by_pytorch, maps)
        monkeypatch.setattr(pooling, "can_fuse", lambda maps: True)
        calls, pooled = counted(monkeypatch), top_gap_and_l1(maps, k=0.3)
        assert (pooled.logits.shape, pooled.l1.shape) == ((2, 3), (2,))
        torch.testing.assert_close(with_gradient(at_once, maps), expected, rtol=1e-5, atol=1e-6)
        assert torch.equal(TopGAP(0.3)(maps), pooled.logits)
        assert calls == ["pool", "pool", "spread", "pool"]
        half = maps.bfloat16()
        assert top_gap_and_l1(half, k=3).l1.dtype == class_map_l1(half).dtype == torch.float32

    def test_one_launch_a_step(self, monkeypatch):
        options = {"k": 0.2, "width": 6, "backbone_options": {"width": 4, "blocks": (1, 1)}}
        model = build_network("top_gap", (1, 12, 12), 3, options=options, seed=0).to(DEVICE)
        images, labels = random(2, 1, 12, 12), torch.tensor([0, 2], device=DEVICE)

        def gradients(fuses):
            for module in (pooling, steps):
                monkeypatch.setattr(module, "can_fuse", lambda maps: fuses)
            generator = torch.Generator(DEVICE).manual_seed(0)
            step = forward(model, images.clone().requires_grad_(), labels, generator)
            loss = F.cross_entropy(step.logits, labels)
            for name in ("class_map_l1", "input_gradient"):
                loss = loss + PENALTIES[name](step).mean()
            return torch.autograd.grad(loss, list(model.parameters()))

        expected, calls = gradients(False), counted(monkeypatch)
        torch.testing.assert_close(gradients(True), expected, rtol=1e-4, atol=1e-5)
        assert calls.count("pool") == 1


class OnCuda(torch.Tensor):
    device = torch.device("cuda")


class TestWithoutKernel:
    @pytest.mark.skipif(INTERPRETED, reason="this is that run")
    def test_kernel_in_tritons_interpreter(self):
        pytest.importorskip("triton")
        environment = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
        command += ["-m", "gpu", __file__]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stdout + run.stderr
        assert "passed" in run.stdout
        assert "skipped" not in run.stdout

    @pytest.mark.skipif(INTERPRETED, reason="the interpreter does not compile")
    @pytest.mark.parametrize("architecture", [80, 90])
    def test_compiled_for_cuda(self, architecture, tmp_path, monkeypatch):
        triton = pytest.importorskip("triton")
        from triton.backends.compiler import GPUTarget

        from reglib.top_gap import kernels

        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
        floats = {"means", "sizes", "smallest", "grad_means", "grad_sizes", "maps", "gradient"}
        target = GPUTarget("cuda", architecture, 32)
        options = {"num_warps": 8, "enable_fp_fusion": False}
        for kernel, small in ((kernels.pool, 0), (kernels.spread, 4)):
            types = {name: "*fp32" if name in floats else "i32" for name in kernel.arg_names}
            types |= {"last": "*i32", "block": "constexpr"}
            source = triton.compiler.ASTSource(kernel, types, {"block": 4096})
            compiled = triton.compile(source, target=target, options=options)
            assert compiled.asm["ptx"].count("ld.global") == 4096 // (8 * 32) + small

    @pytest.mark.parametrize("selects", [True, False])
    def test_logits_and_l1_by_pytorch(self, selects, monkeypatch):
        if not selects:
            monkeypatch.setattr(blocks, "numpy", lambda: None)
        maps, results = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0)), []
        assert pooling.can_block(maps) == selects
        pooled = top_gap_and_l1(maps, k=0.25)
        assert torch.equal(pooled.logits, top_gap(maps, k=5))
        torch.testing.assert_close(pooled.l1, class_map_l1(maps))
        assert torch.equal(TopGAP(5)(maps, results), pooled.logits)
        assert torch.equal(results[0].l1, pooled.l1)

    @pytest.mark.parametrize(
        ("shape", "dtype", "fuses"),
        [((2, 3, 64, 64), torch.float32, True), ((2, 3, 4, 4), torch.bfloat16, True)]
        + [((2, 3, 64, 65), torch.float32, False), ((2, 3, 4, 4), torch.float64, False)]
        + [((0, 3, 4, 4), torch.float32, False)],
    )
    def test_which_maps_are_fused(self, shape, dtype, fuses, monkeypatch):
        monkeypatch.setattr(fused, "kernels_run", lambda: True)
        maps = torch.zeros(shape, dtype=dtype)
        on_cuda = maps.as_subclass(OnCuda)
        assert not pooling.can_fuse(maps)
        assert not pooling.can_fuse(on_cuda)  # a subclass may hold anything
        monkeypatch.setattr(pooling, "Tensor", OnCuda)
        assert pooling.can_fuse(on_cuda) == fuses
        monkeypatch.setattr(fused, "kernels_run", lambda: False)
        assert not pooling.can_fuse(on_cuda)

    def test_triton_missing_or_broken(self, monkeypatch):
        kernels_run = fused.kernels_run.__wrapped__

        def fail(maps, k):
            raise RuntimeError("Failed to find C compiler")

        monkeypatch.setattr(torch, "zeros", lambda *shape, device: None)
        monkeypatch.setattr(fused, "fused_means", fail)
        message = r"cannot build its kernels \(Failed to find C comp"
        with pytest.warns(RuntimeWarning, match=message):
            assert not kernels_run()
        monkeypatch.setattr(fused, "fused_means", lambda maps, k: None)
        assert kernels_run()
        monkeypatch.setattr(fused.importlib.util, "find_spec", lambda name: None)
        assert not kernels_run()
