"""A captured training step: on CUDA it does what the step does, elsewhere it is the step."""

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


def network_of(width=4):
    torch.manual_seed(0)
    layers = nn.Conv2d(1, width, 3), nn.BatchNorm2d(width), nn.ReLU(), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(36 * width, 3))


def batches(count, size=6, device="cpu"):
    generator = torch.Generator().manual_seed(1)
    drawn = [torch.rand(size, 1, 8, 8, generator=generator) for _ in range(count)]
    return [(images.to(device), torch.arange(size, device=device) % 3) for images in drawn]


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
    def test_takes_what_is_to_be_taken(self, changes, message):
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
    """A graph that replays by calling what was captured, on the same tensors."""

    def __init__(self):
        self.generators = []

    def register_generator_state(self, generator):
        self.generators.append(generator)

    def replay(self):
        for results, again in zip(self.owner.results, self.owner.step(*self.owner.batch)):
            results.data.copy_(again.data)


@pytest.fixture
def fake(monkeypatch):
    """Make a captured step on the CPU, whose graph is a `FakeGraph`."""
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
        """Return the captured step, and its optimizer."""
        failing.network = network_of()
        optimizer = torch.optim.SGD(failing.network.parameters(), lr=lr)
        step = change(step_of(failing.network, optimizer))
        failing.owner = cuda_graphs._Captured(step, optimizer, [], stream, warm_up)
        return failing.owner, optimizer

    make.failing = failing
    return make


CAPTURING = "operation not permitted when stream is capturing"


class TestOrder:
    """What happens in which call, with a graph that is none."""

    def test_gives_what_the_step_gives(self, fake):
        (step, _), other = fake(warm_up=2), network_of()
        usual = step_of(other, torch.optim.SGD(other.parameters(), lr=0.1))
        for number, batch in enumerate([*batches(5), *batches(1, size=3), *batches(2)]):
            assert (step.graph is None) == (number < 3)
            found = step(*batch)
            torch.testing.assert_close(found, usual(*batch))
            assert not any(value.requires_grad for value in found)
        torch.testing.assert_close(fake.failing.network.state_dict(), other.state_dict())

    def test_results_are_not_overwritten(self, fake):
        step, _ = fake()
        assert len({float(step(*batch)[0]) for batch in batches(4)}) == 4

    def test_single_tensor(self, fake):
        step, _ = fake(lambda of_both: lambda *batch: of_both(*batch)[0])
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

    def test_rate_in_a_tensor_may_change(self, fake):
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
        said = f"step: cannot be captured: .*{message}".replace("(", r"\(").replace(")", r"\)")
        for _ in range(2):  # it does not go on without being asked
            with pytest.raises(RuntimeError, match=said):
                step(*batches(1)[0])


def test_groups_are_counted_without_waiting():
    losses = torch.tensor([1.0, 2.0, 4.0, 8.0], requires_grad=True)
    groups, weights = torch.tensor([0, 2, 2, 0]), torch.tensor([0.2, 0.3, 0.5])
    loss, _ = group_dro(losses, groups, weights, step_size=0.1)
    means = torch.tensor([4.5, 0.0, 3.0])
    expected = ((weights.log() + 0.1 * means).softmax(0) * means).sum()
    torch.testing.assert_close(loss, expected)


def penalties(generator):
    """Return penalties of the library by name, each of network, logits, labels and images."""
    weights, target = torch.full((3,), 1 / 3, device="cuda"), torch.ones(8, 8, device="cuda")
    drawn, attack = {"generator": generator}, {"epsilon": 0.1, "step_size": 0.1}

    def landscape(network, _, __, images):
        view = reglib.evaluation_mode(network)
        return reglib.importance_landscape(view, images, **drawn, create_graph=True)

    def groups(_, logits, labels, __):
        losses = cross_entropy(logits, labels, reduction="none")
        return group_dro(losses, labels, weights, step_size=0.1).loss

    return {
        "none": None,
        "input_gradient": lambda n, y, t, x: reglib.input_gradient_penalty(y, t, x),
        "logit_gradient": lambda n, y, t, x: reglib.logit_gradient_penalty(y, t, x),
        "marginal_density": lambda n, y, t, x: reglib.marginal_density_penalty(y, x, **drawn),
        "score_matching": partial(reglib.score_matching_penalty, trace="taylor", **drawn),
        "input_hessian": lambda n, y, t, x: reglib.input_hessian_penalty(y, t, x, **drawn),
        "cure": reglib.cure_penalty,
        "finite_difference": reglib.finite_difference_penalty,
        "adversarial": partial(reglib.adversarial_penalty, random_start=True, **attack, **drawn),
        "curvature": lambda *given: reglib.curvature_penalty(landscape(*given)),
        "target": lambda *given: reglib.target_penalty(landscape(*given), target),
        "group_dro": groups,
    }


NAMES = """none input_gradient logit_gradient marginal_density score_matching input_hessian cure
finite_difference adversarial curvature target group_dro""".split()
OPTIMIZERS = {
    "sgd": sgd,
    "adam": lambda n: torch.optim.Adam(n.parameters(), capturable=True),
    "fused adam": lambda n: torch.optim.Adam(
        n.parameters(), lr=torch.tensor(1e-3, device="cuda"), capturable=True, fused=True
    ),
}
CHANGES = {
    **{name: {"name": name} for name in NAMES},
    **{name: {"optimizer": name} for name in OPTIMIZERS},
    "fast double backward": {"fast": True},
    "autocast": {"context": lambda: torch.autocast("cuda", torch.bfloat16)},
}


@pytest.mark.gpu
class TestOnCuda:
    def both(self, name="input_gradient", optimizer="sgd", fast=False, context=nullcontext):
        """Train by the step and by the captured step; return losses and states of both."""
        found = []
        for capture in (False, True):
            network = network_of().cuda()
            model = reglib.fast_double_backward(network) if fast else network
            made = OPTIMIZERS[optimizer](network)
            generator = torch.Generator("cuda").manual_seed(5)
            torch.manual_seed(6)
            step = step_of(model, made, penalties(generator)[name], context)
            if capture:
                step = captured(step, made, generators=[generator])
            data = [*batches(6, device="cuda"), *batches(1, 3, "cuda"), *batches(2, device="cuda")]
            values = [torch.stack(step(*batch)) for batch in data]
            found.append((torch.stack(values).detach(), network.state_dict()))
        return found

    @pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
    def test_is_the_step(self, change):
        usual, graph = self.both(**change)
        rtol, atol = (2e-2, 2e-2) if "context" in change else (1e-4, 1e-5)
        torch.testing.assert_close(graph, usual, rtol=rtol, atol=atol)

    def test_never_waits_and_advances_generators(self):
        made, generator = sgd(network_of().cuda()), torch.Generator("cuda").manual_seed(5)

        def draw(images, labels):
            return torch.rand(3, generator=generator, device="cuda")

        drawn, batch = captured(draw, made, generators=[generator]), batches(1, device="cuda")[0]
        values = [drawn(*batch) for _ in range(6)]
        again = torch.Generator("cuda").manual_seed(5)
        expected = [torch.rand(3, generator=again, device="cuda") for _ in range(6)]
        torch.testing.assert_close(values, expected)
        generator.manual_seed(5)
        torch.testing.assert_close(drawn(*batch), expected[0])

    def test_step_that_waits(self):
        network = network_of().cuda()
        made = sgd(network)
        usual = step_of(network, made)

        def step(*batch):
            loss, penalty = usual(*batch)
            return loss * float(loss.detach()), penalty

        waits, batch = captured(step, made, warm_up=1), batches(1, device="cuda")[0]
        waits(*batch)
        with pytest.raises(RuntimeError, match="step: cannot be captured: it must read no value"):
            waits(*batch)
        assert float(usual(*batch)[0]) > 0  # the device goes on

    def test_what_is_on_another_device(self):
        network = network_of().cuda()
        made = sgd(network)
        with pytest.raises(ValueError, match="generators: expected all on cuda:0, where"):
            captured(print, made, generators=[torch.Generator()])
        step = captured(step_of(network, made), made)
        with pytest.raises(ValueError, match=r"batch: expected all on cuda:0, .*got one on cpu"):
            step(*batches(1)[0])
        with pytest.raises(ValueError, match="optimizer: expected SGD, or one made with"):
            captured(print, torch.optim.Adam(network.parameters()))
