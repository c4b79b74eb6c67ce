import warnings

import pytest
import torch

from reglib.networks import build_network
from reglib.saliency import SALIENCIES, deeplift, logit_gradient

NETWORKS = {
    "lenet5": ("lenet5", (2, 12, 12), {}),
    "resnet": ("resnet", (2, 12, 12), {"width": 3, "blocks": (1, 1)}),
}


@pytest.fixture(params=NETWORKS)
def network(request):
    name, shape, options = NETWORKS[request.param]
    return build_network(name, shape, 5, options=options, seed=1).double().eval()


@pytest.fixture
def images():
    generator = torch.Generator().manual_seed(2)
    return torch.randn(3, 2, 12, 12, generator=generator, dtype=torch.float64)


CLASS_INDEX = torch.tensor([4, 0, 2])


def logits_of(network, images):
    with torch.no_grad():
        return network(images).gather(1, CLASS_INDEX[:, None])[:, 0]


def test_logit_gradient_agrees_with_finite_differences(network, images):
    maps = logit_gradient(network, images, CLASS_INDEX)
    generator = torch.Generator().manual_seed(3)
    for _ in range(5):
        pixel = tuple(int(torch.randint(n, (), generator=generator)) for n in images.shape[1:])
        step = torch.zeros_like(images)
        step[:, *pixel] = 1e-6
        slope = (logits_of(network, images + step) - logits_of(network, images - step)) / 2e-6
        torch.testing.assert_close(maps[:, *pixel], slope, rtol=1e-6, atol=1e-8)


def test_deeplift_is_complete(network, images):
    maps = deeplift(network, images, CLASS_INDEX)
    difference = logits_of(network, images) - logits_of(network, torch.zeros_like(images))
    torch.testing.assert_close(maps.sum((1, 2, 3)), difference, rtol=1e-9, atol=1e-9)


def test_deeplift_of_a_linear_network_is_gradient_times_input():
    linear = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2)).eval()
    images = torch.tensor([[[[1.0, -2.0], [3.0, 0.5]]]])
    class_index = torch.tensor([1])
    expected = logit_gradient(linear, images, class_index) * images
    torch.testing.assert_close(deeplift(linear, images, class_index), expected)


@pytest.mark.parametrize("method", SALIENCIES.values(), ids=SALIENCIES)
def test_map_of_an_image_does_not_depend_on_the_batch(method, network, images):
    together = method(network, images, CLASS_INDEX)
    assert together.shape == images.shape
    for b in range(3):
        alone = method(network, images[b : b + 1], CLASS_INDEX[b : b + 1])
        torch.testing.assert_close(together[b : b + 1], alone, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("method", SALIENCIES.values(), ids=SALIENCIES)
@pytest.mark.parametrize("training", [False, True])
def test_model_and_images_are_left_as_they_were(method, training, images):
    network = build_network("lenet5", (2, 12, 12), 5, options={}, seed=1).double().train(training)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    kept = images.clone()
    random = torch.get_rng_state()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        maps = method(network, images, CLASS_INDEX)
    assert not told
    assert not maps.requires_grad
    assert not images.requires_grad
    assert images.grad is None
    assert torch.equal(images, kept)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(p.grad is None for p in network.parameters())
    assert all(torch.equal(network.state_dict()[name], value) for name, value in before.items())
    assert all(module.training is training for module in network.modules())
    for module in network.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert not module._backward_hooks
        assert not module._backward_pre_hooks


@pytest.mark.parametrize("method", SALIENCIES.values(), ids=SALIENCIES)
def test_images_that_require_a_gradient_get_none(method, images):
    network = build_network("lenet5", (2, 12, 12), 5, options={}, seed=1).double().eval()
    inputs = images.requires_grad_()
    method(network, inputs, CLASS_INDEX)
    assert inputs.grad is None
    assert inputs.requires_grad
