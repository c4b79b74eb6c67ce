"""A captured training step: it equals the step on CUDA, and is the step itself on the CPU."""

import copy
from contextlib import contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import reglib
from reglib import captured, cuda_graphs
from reglib.regularizers import group_dro
from tests.small_batches import generator


def network_of(width=4):
    torch.manual_seed(0)
    layers = nn.Conv2d(1, width, 3), nn.BatchNorm2d(width), nn.ReLU(), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(36 * width, 3))


def batches(count, size=6, device="cpu"):
    source = generator(1)
    images = [torch.rand(size, 1, 8, 8, generator=source) for _ in range(count)]
    return [(x.to(device), torch.arange(size, device=device) % 3) for x in images]


def step_of(network, optimizer, penalty=None, context=nullcontext):
    """Return a training step with a penalty, which returns the loss and the penalty."""

    def step(images, labels):
        x = images.detach().requires_grad_()
        with context():
            logits = network(x)
            value = logits.new_zeros(()) if penalty is None else penalty(network, logits, labels, x)
            loss = cross_entropy(logits, labels) + 0.1 * value.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss, value.mean()

    return step


def sgd(network, **options):
    return torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, **options)


class TestOnTheCpu:
    def test_is_the_step(self):
        network = network_of()
        optimizer = torch.optim.Adam(network.parameters())  # need not be capturable
        step = step_of(network, optimizer)
        assert captured(step, optimizer, generators=[torch.Generator()]) is step
        assert reglib.captured is captured

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"optimizer": "sgd"}, "optimizer: expected a PyTorch Optimizer, got str"),
            ({"warm_up": 0}, "warm_up: expected a positive number, got 0"),
            ({"generators": [1]}, "generators: expected a PyTorch Generator, got int"),
        ],
    )
    def test_unsuitable_arguments_are_refused(self, changes, message):
        with pytest.raises(ValueError, match=message):
            captured(print, **{"optimizer": sgd(network_of())} | changes)

    @pytest.mark.parametrize("name", ["Adam", "Adagrad", "Adafactor", "LBFGS"])
    def test_optimizer_counting_on_cpu_is_refused(self, name):
        message = rf"expected SGD, or one made with capturable=True.*, got {name} without"
        with pytest.raises(ValueError, match=message):
            cuda_graphs._check_optimizer(getattr(torch.optim, name)(network_of().parameters()))

    def test_optimizer_that_can_be_captured(self):
        parameters = list(network_of().parameters())
        for optimizer in (sgd(network_of()), torch.optim.AdamW(parameters, capturable=True)):
            cuda_graphs._check_optimizer(optimizer)


class FakeGraph:
    """A graph that replays by calling the captured step on the same tensors."""

    def replay(self):
        for results, again in zip(self.owner.results, self.owner.step(*self.owner.batch)):
            results.data.copy_(again.data)


@pytest.fixture
def fake(monkeypatch):
    stream = SimpleNamespace(device=torch.device("cpu"), wait_stream=lambda other: None)
    failing = SimpleNamespace(error=None)

    @contextmanager
    def graph(graph, stream, capture_error_mode):
        graph.owner = failing.owner
        before = copy.deepcopy(failing.network.state_dict())
        yield
        failing.network.load_state_dict(before)  # a capture computes nothing
        if failing.error:
            raise failing.error

    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)

    def make(change=lambda step: step, lr=0.1, warm_up=1):
        failing.network = network_of()
        optimizer = torch.optim.SGD(failing.network.parameters(), lr=lr)
        step = change(step_of(failing.network, optimizer))
        failing.owner = cuda_graphs._Captured(step, optimizer, [], stream, warm_up)
        return failing.owner, optimizer

    make.failing = failing
    return make


CAPTURING = "operation not permitted when stream is capturing"


class TestOrder:
    def test_gives_what_the_step_gives(self, fake):
        (step, _), other = fake(warm_up=2), network_of()
        stock = step_of(other, torch.optim.SGD(other.parameters(), lr=0.1))
        for number, batch in enumerate([*batches(5), *batches(1, size=3), *batches(2)]):
            assert (step.graph is None) == (number < 3)
            results = step(*batch)
            torch.testing.assert_close(results, stock(*batch))
            assert not any(result.requires_grad for result in results)
        torch.testing.assert_close(fake.failing.network.state_dict(), other.state_dict())

    def test_results_are_not_overwritten(self, fake):
        step, _ = fake()
        assert len({float(step(*batch)[0]) for batch in batches(4)}) == 4

    def test_single_tensor(self, fake):
        step, _ = fake(lambda step: lambda *batch: step(*batch)[0])
        assert step(*batches(1)[0]).shape == ()

    def test_setting_that_changes_is_refused(self, fake):
        (step, optimizer), (first, second, third) = fake(), batches(3)
        step(*first)
        step(*second)
        optimizer.param_groups[0]["lr"] = 0.01
        with pytest.raises(RuntimeError, match=r"captured with .*'lr': 0\.1.*now it has .*'lr': 0"):
            step(*third)
        optimizer.param_groups[0]["lr"] = 0.1
        step(*third)

    def test_rate_in_tensor_may_change(self, fake):
        step, optimizer = fake(lr=torch.tensor(0.1))
        for number, batch in enumerate(batches(3)):
            optimizer.param_groups[0]["lr"].fill_(0.1 / (1 + number))
            step(*batch)

    def test_batch_on_another_device(self, fake):
        (step, _), (images, labels) = fake(), batches(1)[0]
        with pytest.raises(ValueError, match=r"batch: expected all on cpu, .*got one on meta"):
            step(images.to("meta"), labels)

    @pytest.mark.parametrize(
        ("error", "message"),
        [
            (RuntimeError(CAPTURING), f"it must read no value, .* ({CAPTURING})"),
            (torch.cuda.OutOfMemoryError("CUDA out of memory"), "make the batch smaller (CUDA out"),
        ],
    )
    def test_step_that_cannot_be_captured(self, fake, error, message):
        step, _ = fake()
        fake.failing.error = error
        step(*batches(1)[0])
        message = message.replace("(", r"\(").replace(")", r"\)")
        for _ in range(2):  # the step does not run uncaptured instead
            with pytest.raises(RuntimeError, match=f"step: cannot be captured: .*{message}"):
                step(*batches(1)[0])


def penalties(source, device="cuda"):
    weights, target = torch.full((3,), 1 / 3, device=device), torch.ones(8, 8, device=device)
    random, attack = {"generator": source}, {"epsilon": 0.1, "step_size": 0.1}

    def landscape(network, _, __, images):
        view = reglib.evaluation_mode(network)
        return reglib.importance_landscape(view, images, **random, create_graph=True)

    def groups(_, logits, labels, __):
        losses = cross_entropy(logits, labels, reduction="none")
        return group_dro(losses, labels, weights, step_size=0.1).loss

    return {
        "none": None,
        "input_gradient": lambda n, y, t, x: reglib.input_gradient_penalty(y, t, x),
        "logit_gradient": lambda n, y, t, x: reglib.logit_gradient_penalty(y, t, x),
        "marginal_density": lambda n, y, t, x: reglib.marginal_density_penalty(y, x, **random),
        "score_matching": partial(reglib.score_matching_penalty, trace="taylor", **random),
        "input_hessian": lambda n, y, t, x: reglib.input_hessian_penalty(y, t, x, **random),
        "cure": reglib.cure_penalty,
        "finite_difference": reglib.finite_difference_penalty,
        "adversarial": partial(reglib.adversarial_penalty, random_start=True, **attack, **random),
        "curvature": lambda *step: reglib.curvature_penalty(landscape(*step)),
        "target": lambda *step: reglib.target_penalty(landscape(*step), target),
        "group_dro": groups,
    }


OPTIMIZERS = {
    "sgd": sgd,
    "adam": lambda n: torch.optim.Adam(n.parameters(), capturable=True),
    "fused adam": lambda n: torch.optim.Adam(
        n.parameters(), lr=torch.tensor(1e-3, device="cuda"), capturable=True, fused=True
    ),
}
CHANGES = {
    **{name: {"name": name} for name in penalties(None, "cpu")},
    **{name: {"optimizer": name} for name in OPTIMIZERS},
    "fast double backward": {"fast": True},
    "autocast": {"context": lambda: torch.autocast("cuda", torch.bfloat16)},
}


@pytest.mark.gpu
class TestOnCuda:
    def train(self, capture, name="input_gradient", optimizer="sgd", fast=False, context=None):
        network = network_of().cuda()
        model = reglib.fast_double_backward(network) if fast else network
        optimizer, source = OPTIMIZERS[optimizer](network), torch.Generator("cuda").manual_seed(5)
        torch.manual_seed(6)
        step = step_of(model, optimizer, penalties(source)[name], context or nullcontext)
        if capture:
            step = captured(step, optimizer, generators=[source])
        data = [*batches(6, device="cuda"), *batches(1, 3, "cuda"), *batches(2, device="cuda")]
        values = [torch.stack(step(*batch)) for batch in data]
        return torch.stack(values).detach(), network.state_dict()

    @pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
    def test_is_the_step(self, change):
        rtol, atol = (2e-2, 2e-2) if "context" in change else (1e-4, 1e-5)
        results, expected = (self.train(capture, **change) for capture in (True, False))
        torch.testing.assert_close(results, expected, rtol=rtol, atol=atol)

    def test_advances_generators(self):
        optimizer, source = sgd(network_of().cuda()), torch.Generator("cuda").manual_seed(5)

        def draw(images, labels):
            return torch.rand(3, generator=source, device="cuda")

        step, batch = captured(draw, optimizer, generators=[source]), batches(1, device="cuda")[0]
        values = [step(*batch) for _ in range(6)]
        other = torch.Generator("cuda").manual_seed(5)
        expected = [torch.rand(3, generator=other, device="cuda") for _ in range(6)]
        torch.testing.assert_close(values, expected)
        source.manual_seed(5)
        torch.testing.assert_close(step(*batch), expected[0])

    def test_step_that_waits(self):
        network, batch = network_of().cuda(), batches(1, device="cuda")[0]
        optimizer = sgd(network)
        step = step_of(network, optimizer)

        def wait(*batch):
            loss, penalty = step(*batch)
            return loss * float(loss.detach()), penalty

        captured_step = captured(wait, optimizer, warm_up=1)
        captured_step(*batch)
        with pytest.raises(RuntimeError, match="step: cannot be captured: it must read no value"):
            captured_step(*batch)
        assert float(step(*batch)[0]) > 0  # the device still works

    def test_arguments_on_another_device(self):
        network = network_of().cuda()
        optimizer = sgd(network)
        with pytest.raises(ValueError, match="generators: expected all on cuda:0, where"):
            captured(print, optimizer, generators=[torch.Generator()])
        step = captured(step_of(network, optimizer), optimizer)
        with pytest.raises(ValueError, match=r"batch: expected all on cuda:0, .*got one on cpu"):
            step(*batches(1)[0])
        with pytest.raises(ValueError, match="optimizer: expected SGD, or one made with"):
            captured(print, torch.optim.Adam(network.parameters()))
