import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from suite.errors import UsageError
from suite.networks import build_network
from suite.training import loop
from suite.training.optimizers import build_optimizer, set_learning_rate
from suite.units import Training

OPTIONS = {"momentum": 0.5, "weight_decay": 0.2}
FIELDS = {"data": "mnist5k", "network": "lenet5", "epochs": 3, "learning_rate": 0.1, "seed": 0}
UNIT = Training(**FIELDS, optimizer="sgd", optimizer_options=OPTIONS, cosine_epochs=4)
CONSTANT = replace(UNIT, cosine_epochs=None)
OF_SGD = "unknown setting of optimizer 'sgd'"


class TestLearningRate:
    def rates(self, unit):
        """Return the rates of the steps of an epoch, five each, and that of the end."""
        optimizer, rates = build_optimizer(unit, nn.Linear(1, 1)), []
        for steps in range(21):
            set_learning_rate(optimizer, unit, steps=steps, steps_per_epoch=5)
            rates.append(optimizer.param_groups[0]["lr"])
        return rates

    def test_follows_half_a_cosine(self):
        rates = self.rates(UNIT)
        assert (rates[0], rates[10]) == (pytest.approx(0.1), pytest.approx(0.05))
        assert rates[5] == pytest.approx(0.05 * (1 + math.sqrt(0.5)))
        assert rates[20] == pytest.approx(0.0, abs=1e-15)

    def test_is_constant_without_a_schedule(self):
        assert self.rates(CONSTANT) == [0.1] * 21

    def test_is_divided_after_each_decay(self):
        rates = self.rates(replace(CONSTANT, decay_epochs=(2, 3)))
        assert rates == pytest.approx([0.1] * 10 + [0.01] * 5 + [0.001] * 6)


class TestOptimizer:
    def test_sgd_steps_by_its_equations(self):
        """Gradient g + decay w, velocity v = momentum v + gradient, w = w - rate v."""
        network = nn.Linear(1, 1, bias=False).double()
        network.weight.data.fill_(3.0)
        optimizer = build_optimizer(UNIT, network)
        weight, velocity = 3.0, 0.0
        for gradient in (1.0, -2.0, 0.5):
            network.weight.grad = torch.full((1, 1), gradient, dtype=torch.float64)
            optimizer.step()
            velocity = 0.5 * velocity + gradient + 0.2 * weight
            weight -= 0.1 * velocity
            assert network.weight.item() == pytest.approx(weight, rel=1e-12)

    def test_biases_need_not_decay(self):
        network = build_network("convnet", (3, 32, 32), 10, options={"width": 4}, seed=0)
        options = {"weight_decay": 0.5, "decay_all": False}
        optimizer = build_optimizer(replace(UNIT, optimizer_options=options), network)
        before = {name: p.detach().clone() for name, p in network.named_parameters()}
        for parameter in network.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        types = {name: type(module) for name, module in network.named_modules()}
        for name, parameter in network.named_parameters():
            module, _, field = name.rpartition(".")
            decays = field == "weight" and types[module] is not nn.BatchNorm2d
            torch.testing.assert_close(parameter, before[name] * (0.95 if decays else 1))

    @pytest.mark.parametrize(
        ("optimizer", "options", "text"),
        [
            ("sgd", {"momentun": 0.9}, f"{OF_SGD} 'momentun': did you mean"),
            ("adam", {"momentum": 0.9}, r"unknown setting of optimizer 'adam' 'momentum'"),
            ("sgd", {"lr": 0.1}, f"{OF_SGD} 'lr'"),
            ("sgd", {"momentum": -1}, r"optimizer 'sgd': Invalid momentum value: -1"),
            ("sgd", {"momentum": "0.9"}, r"optimizer 'sgd': "),
            ("sgd", {"momentum": True}, r"optimizer 'sgd': momentum: expected a number, got True"),
            ("sgd", {"nesterov": 1}, r"optimizer 'sgd': nesterov: expected True or False, got 1"),
            ("sgd", {"nesterov": True}, r"optimizer 'sgd': Nesterov momentum requires"),
            ("sgd", {"decay_all": "no"}, r"optimizer 'sgd': decay_all: expected True or False"),
        ],
    )
    def test_refused(self, optimizer, options, text):
        unit = replace(UNIT, optimizer=optimizer, optimizer_options=options)
        with pytest.raises(UsageError, match=text):
            loop.check(unit)
