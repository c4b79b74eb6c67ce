import pytest
import torch
from torch import nn

from reglib.double_backward import folding_of
from suite.data import load_data
from suite.errors import DataMissing, UsageError
from suite.networks import PRETRAINED, load_pretrained, pretrained_weights
from suite.networks.defences import SoftReLU6, with_softplus
from suite.networks.pretrained import network_inputs
from suite.runs import Store, compute
from suite.runs.execute import describe, load_subject
from suite.runs.plan import plan
from suite.units import Measurement, Pretrained, from_identity, key
from tests.tiny_pretrained import PHOTOGRAPHS, SIDE, UNIT, build, register


@pytest.fixture
def weights(tmp_path, monkeypatch):
    return register(tmp_path / "data", monkeypatch)


def measurement(metric="high_order", training=UNIT, **settings):
    return Measurement(training=training, metric=metric, settings={"n_images": 2, **settings})


class TestLoad:
    def test_packaged_network_is_piecewise_linear(self):
        network = load_pretrained("efficientnet_lite0").to(memory_format=torch.channels_last)
        photographs = load_data("foolbox-imagenet").test
        with torch.no_grad():
            predicted = network(network_inputs("efficientnet_lite0", photographs.images)).argmax(1)
        assert int((predicted == photographs.labels).sum()) == 18
        folding = folding_of(network)
        assert not folding.nonlinear
        assert not folding.kept
        assert not any(module.training for module in network.modules())
        assert not any(parameter.requires_grad for parameter in network.parameters())

    def test_smooth_activations_are_curved(self):
        network = with_softplus(build(), beta=20.0)
        assert not any(isinstance(module, nn.ReLU6) for module in network.modules())
        assert list(folding_of(network).nonlinear.values()) == ["softplus is called"] * 2
        x = torch.linspace(-3, 9, 1001)
        gap = (SoftReLU6(20.0)(x) - nn.functional.relu6(x)).abs()
        assert gap.max() == pytest.approx(torch.log(torch.tensor(2.0)).item() / 20, rel=1e-3)

    @pytest.mark.parametrize("name", PRETRAINED)
    def test_every_network_builds(self, name):
        entry = pretrained_weights(name)
        with torch.device("meta"):
            logits = entry.build().eval()(torch.empty(2, 3, entry.size, entry.size))
        assert logits.shape == (2, entry.classes)
        assert entry.about
        assert entry.licence
        assert len(entry.sha256) >= 8

    def test_scales_pixels_as_in_training(self, weights):
        pixels = torch.tensor([0, 255, 51], dtype=torch.uint8).view(1, 3, 1, 1)
        inputs = network_inputs("tiny", pixels.expand(2, 3, SIDE, SIDE))
        by_hand = [0, 1, 0.2], [(0 - 0.5) / 0.5, (1 - 0.4) / 0.25, (0.2 - 0.3) / 0.2]
        expected, scaled = torch.tensor(by_hand).view(2, 1, 3, 1, 1).expand(2, 2, 3, SIDE, SIDE)
        torch.testing.assert_close(inputs, expected)
        model = load_pretrained("tiny")
        torch.testing.assert_close(model(inputs), model[1](scaled))
        lite = load_pretrained("efficientnet_lite0")[0](inputs)
        torch.testing.assert_close(lite[0, :, 0, 0], torch.tensor([-127.0, 128.0, -76.0]) / 128)

    def test_refuses_other_images(self, weights):
        pixels = torch.zeros(1, 3, SIDE, SIDE, dtype=torch.uint8)
        for name, images, message in (
            ("tiny", pixels.float(), "expected uint8 from 0 to 255.*got torch.float32"),
            ("tiny", pixels[..., :8], r"expected shape \(B, 3, 16, 16\).*got \(1, 3, 16, 8\)"),
            ("tiyn", pixels, "unknown pretrained network 'tiyn': did you mean 'tiny'"),
        ):
            with pytest.raises(ValueError, match=message):
                network_inputs(name, images)

    def test_refuses_another_checksum(self, weights):
        weights.write_bytes(weights.read_bytes()[:-1] + b"!")
        message = r"tiny.pth: expected the weights of 'tiny', whose SHA"
        with pytest.raises(UsageError, match=message):
            load_pretrained("tiny")
        message = "Remove the file and get it again: look into .*data/weights"
        with pytest.raises(UsageError, match=message):
            compute([measurement()])

    def test_how_to_get_missing_weights(self, weights, tmp_path, monkeypatch):
        weights.unlink()
        with pytest.raises(DataMissing, match=rf"To get them: look into {tmp_path}/data/weights"):
            load_pretrained("tiny")
        assert "look into" in plan([measurement()], Store(tmp_path / "s")).missing_data["tiny"]
        monkeypatch.setattr("suite.networks.pretrained.find_spec", lambda package: None)
        with pytest.raises(DataMissing, match="weights of 'efficientnet_lite0' are not at"):
            load_pretrained("efficientnet_lite0")


class TestUnit:
    def test_identity_goes_there_and_back(self):
        unit = measurement(n_classes=3)
        assert from_identity(UNIT.identity) == UNIT
        fields = {"data": "tiny-photographs", "network": "tiny"}
        assert UNIT.identity == {"unit": "pretrained", "version": 2} | fields
        other = measurement(training=Pretrained(**fields | {"network": "other"}), n_classes=3)
        prints = {"tiny-photographs": "1"}
        assert key(unit, prints) != key(other, prints)
        assert describe(unit).endswith("of pretrained (data=tiny-photographs, network=tiny)")
        with pytest.raises(UsageError, match="network: expected a name"):
            Pretrained(data="mnist5k", network=3)

    def test_computed_once(self, weights, store, here):
        units = [measurement(first=first, step=2) for first in (0, 4)]
        table = compute(units, store=store, resources=here)
        assert (list(table.network), table.n.tolist()) == (["tiny", "tiny"], [2, 2])
        assert compute(units, store=store, resources=here).equals(table)
        assert load_subject(UNIT, store).unit == UNIT  # which is not stored

    def test_refused_before_any_work(self, weights, store, here, small):
        other_data = Pretrained(data="mnist5k", network="tiny")
        unknown = Pretrained(data="tiny-photographs", network="x")
        training = small(data="tiny-photographs", n_train=None)
        for unit, message in (
            (UNIT, "a Pretrained is trained already: expected measurements of it"),
            (measurement(training=other_data), r"expected shape \(B, 3, 16"),
            (measurement(first=7), f"expected at most {PHOTOGRAPHS} for the test split"),
            (measurement(training=unknown), "unknown pretrained"),
            (measurement(step=0), "step: expected a positive integer, got 0"),
            (training, "expected images to train on, got none"),
        ):
            with pytest.raises(ValueError, match=message):
                compute([unit], store=store, resources=here)
            assert not list(store.folder.glob("*"))
