import copy

import pytest
import torch

from reglib.top_gap import TopGAPNet, scaled_maps
from suite.metrics.grad_cam import grad_cam
from suite.networks import build_network


def network():
    options = {"width": 4, "blocks": (1, 1)}
    return build_network("resnet", (1, 16, 16), 5, options=options, seed=3).eval()


def images():
    return torch.rand(3, 1, 16, 16, generator=torch.Generator().manual_seed(0))


def test_it_is_what_is_positive_in_the_class_activation_map():
    model, x, classes = network(), images(), torch.tensor([2, 0, 4])
    own = TopGAPNet(model, 5, k=1.0, fpn=False, image_size=16).eval()
    own.classifier.weight.data = model[-1].weight.data[:, :, None, None]
    own.classifier.bias.data.zero_()
    with torch.no_grad():
        maps = own.class_maps(x)[torch.arange(3), classes].relu()
    assert (maps > 0).flatten(1).any(1).any()
    found = grad_cam(model, model[4], x, classes)
    torch.testing.assert_close(found, scaled_maps(maps, (16, 16)), rtol=1e-4, atol=1e-5)


def test_network_and_images_are_left_as_they_were():
    model, x = network(), images()
    before = copy.deepcopy(model.state_dict())
    grad_cam(model, model[4], x, torch.tensor([2, 0, 4]))
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not x.requires_grad


def test_a_network_in_training_mode_is_refused():
    model = network().train()
    with pytest.raises(ValueError, match="expected a network in evaluation mode"):
        grad_cam(model, model[4], images(), torch.tensor([2, 0, 4]))
