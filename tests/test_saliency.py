from contextlib import nullcontext
from functools import partial

import pytest
import torch

from reglib.saliency import cafo, surrogate_loss
from suite.metrics import saliency
from suite.metrics.class_maps import normalised_for_display
from suite.metrics.saliency import SALIENCIES, integrated_gradients, logit_gradient, smooth_grad
from suite.networks import build_network
from tests.double_backward import Net, randn
from tests.small_batches import generator, left_alone, random_images, softmax_network

NETWORKS = {"lenet5": {}, "resnet": {"width": 3, "blocks": (1, 1)}}


@pytest.fixture(params=NETWORKS)
def network(request):
    options = NETWORKS[request.param]
    return build_network(request.param, (2, 12, 12), 5, options=options, seed=1).double().eval()


@pytest.fixture
def images():
    return randn(3, 2, 12, 12, seed=2)


CLASS_INDEX = torch.tensor([4, 0, 2])
FROM = {"generator": torch.Generator()}


def logits_of(network, images):
    with torch.no_grad():
        return network(images).gather(1, CLASS_INDEX[:, None])[:, 0]


only_lenet = pytest.mark.parametrize("network", ["lenet5"], indirect=True)


class TestDeeplift:
    def test_is_complete(self, network, images):
        maps = saliency.deeplift(network, images, CLASS_INDEX)
        difference = logits_of(network, images) - logits_of(network, torch.zeros_like(images))
        torch.testing.assert_close(maps.sum((1, 2, 3)), difference, rtol=1e-9, atol=1e-9)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", SALIENCIES)
class TestEachMethod:
    @pytest.mark.parametrize("network", ["resnet"], indirect=True)
    def test_depends_on_the_image_alone(self, name, network, images):
        inputs = images[1:].clone().requires_grad_()
        with left_alone(network, inputs, images):
            maps = SALIENCIES[name](network, inputs, CLASS_INDEX[1:])
            alone = SALIENCIES[name](network, images[2:], CLASS_INDEX[2:])
        assert (maps.shape, maps.dtype, maps.requires_grad) == (inputs.shape, inputs.dtype, False)
        torch.testing.assert_close(maps[1:], alone, rtol=1e-9, atol=1e-12)

    @only_lenet
    def test_training_mode_is_kept_or_refused(self, name, network, images):
        taken = name in ("logit_gradient", "absolute_gradient", "smooth_grad", "deeplift")
        refuses = pytest.raises(ValueError, match=r"in training mode; call model.eval\(\) first")
        with left_alone(network.train()), nullcontext() if taken else refuses:
            SALIENCIES[name](network, images[:1], CLASS_INDEX[:1])


class TestGradients:
    def test_logit_gradient_by_differences(self, network, images):
        maps, source = logit_gradient(network, images, CLASS_INDEX), generator(3)
        for _ in range(5):
            pixel = tuple(int(torch.randint(n, (), generator=source)) for n in images.shape[1:])
            step = torch.zeros_like(images)
            step[:, *pixel] = 1e-6
            slope = (logits_of(network, images + step) - logits_of(network, images - step)) / 2e-6
            torch.testing.assert_close(maps[:, *pixel], slope, rtol=1e-6, atol=1e-8)

    def test_loss_gradient_by_autograd(self, network, images):
        inputs = images.clone().requires_grad_()
        loss = torch.nn.functional.cross_entropy(network(inputs), CLASS_INDEX, reduction="sum")
        (expected,) = torch.autograd.grad(loss, inputs)
        torch.testing.assert_close(saliency.loss_gradient(network, images, CLASS_INDEX), expected)


class TestSmoothGrad:
    @pytest.mark.parametrize("n_samples", [1, 400])
    def test_of_a_quadratic(self, images, n_samples):
        """Noise moves the gradient of a quadratic linearly, so that its mean stays."""
        spread = (images.flatten(1).amax(1) - images.flatten(1).amin(1)).view(3, 1, 1, 1)
        options = {"method": logit_gradient, "noise_level": 0.2, "generator": generator()}
        squares = Net(lambda net, x: x.square().flatten(1).sum(1, keepdim=True)).eval()
        maps = smooth_grad(squares, images, 0 * CLASS_INDEX, n_samples=n_samples, **options)
        error = ((maps - 2 * images) / spread).flatten(1).std(1)
        expected = torch.full_like(error, 0.4 / n_samples**0.5)
        torch.testing.assert_close(error, expected, rtol=0.15, atol=0)


class TestIntegratedGradients:
    @only_lenet
    def test_path_gradients_are_means(self, network, images):
        points = torch.linspace(0, 1, 1001)[1:] - 1 / 2000
        slopes = [logit_gradient(network, a * images, CLASS_INDEX) for a in points[::4]]
        maps = SALIENCIES["path_gradients"](network, images, CLASS_INDEX)
        expected = torch.stack(slopes).mean(0)
        assert (maps - expected).norm() < 0.05 * expected.norm()
        integrated = SALIENCIES["integrated_gradients"](network, images, CLASS_INDEX)
        torch.testing.assert_close(maps * images, integrated)

    def test_over_baselines_of_a_linear_network(self):
        model, labels = softmax_network((1, 3, 3)), torch.tensor([1, 2])
        images, baselines = random_images(2, 1, 3, 3), random_images(130, 1, 3, 3)
        maps = integrated_gradients(model, images, labels, n_steps=2, baselines=baselines)
        weight = model[1].weight.detach()[labels].view(2, 1, 3, 3)
        torch.testing.assert_close(maps, weight * (images - baselines.mean(0)))

    @pytest.mark.parametrize("shape", [(0, 1, 3, 3), (2, 1, 3, 4)])
    def test_refuses_baselines_of_another_shape(self, shape):
        arguments = softmax_network((1, 3, 3)), random_images(2, 1, 3, 3), torch.tensor([0, 0])
        with pytest.raises(ValueError, match=r"baselines: expected shape \(N, 1, 3, 3\), N >= 1"):
            integrated_gradients(*arguments, baselines=torch.zeros(shape))


@pytest.mark.parametrize("method", [cafo, saliency.caso_converged], ids=["cafo", "caso"])
def test_sparse_choice_doubles_the_strength(method, images):
    network = build_network("lenet5", (2, 12, 12), 5, options={}, seed=1).double().eval()
    loss = surrogate_loss(network, images[:1], CLASS_INDEX[:1])
    chosen = saliency.sparse_choice(loss, method)
    halvings = torch.log2(chosen.lambda1 / 1e-5)
    torch.testing.assert_close(halvings, halvings.round())
    strengths = 1e-5 * 2.0 ** torch.arange(30).double()
    tried = method(loss, lambda1=strengths[:, None])
    sparse = (tried.sparsity[:, 0] >= 0.75) & (tried.sparsity[:, 0] < 1)
    assert sparse.sum() > 1
    best = tried.loss_change[:, 0].where(sparse, -torch.inf).argmax()
    assert chosen.lambda1.item() == pytest.approx(strengths[best].item())
    name = "cafo" if method is cafo else "caso"
    torch.testing.assert_close(SALIENCIES[name](network, images, CLASS_INDEX)[:1], chosen.maps)


def test_display_clips_at_the_percentile():
    maps, ramp = torch.zeros(3, 2, 10, 10), torch.arange(100.0).view(10, 10)
    maps[0], maps[1, 0, 3, 4] = torch.stack([ramp, -ramp]), -5.0
    drawn = normalised_for_display(maps)
    torch.testing.assert_close(drawn[0], (ramp / 98.01).clamp_max(1))
    assert (drawn[1, 3, 4], drawn[1].sum(), drawn[2].any()) == (1, 1, False)


@pytest.mark.parametrize(
    ("method", "name", "value", "expected"),
    [
        (partial(smooth_grad, **FROM), "n_samples", 0, "a positive number"),
        (partial(smooth_grad, **FROM), "noise_level", -0.1, "a number from 0 up"),
        (integrated_gradients, "n_steps", 0, "a positive number"),
    ],
)
@only_lenet
def test_refuses_wrong_settings(network, images, method, name, value, expected):
    with pytest.raises(ValueError, match=f"{name}: expected {expected}, got {value}"):
        method(network, images, CLASS_INDEX, **{name: value})


@only_lenet
def test_refuses_wrong_labels(network, images):
    with pytest.raises(ValueError, match="labels: expected indices from 0 to 4, got 5"):
        saliency.loss_gradient(network, images, CLASS_INDEX + 1)
