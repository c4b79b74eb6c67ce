"""A captured training step: on CUDA it does what the step does, elsewhere it is the step."""

import copy
from contextlib import contextmanager, nullcontext
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
        generators = [torch.Generator()]
        assert captured(step, optimizer, generators=generators) is step
        assert reglib.captured is captured

    def test_takes_what_is_to_be_taken(self):
        optimizer = sgd(network_of())
        with pytest.raises(ValueError, match="optimizer: expected a PyTorch Optimizer, got str"):
            captured(print, "sgd")
        with pytest.raises(ValueError, match="warm_up: expected a positive number, got 0"):
            captured(print, optimizer, warm_up=0)
        with pytest.raises(ValueError, match="generators: expected a PyTorch Generator, got int"):
            captured(print, optimizer, generators=[1])

    @pytest.mark.parametrize(
        "kind", [torch.optim.Adam, torch.optim.Adagrad, torch.optim.Adafactor, torch.optim.LBFGS]
    )
    def test_optimizer_that_counts_on_the_cpu_is_refused(self, kind):
        message = rf"expected SGD, or one made with capturable=True.*, got {kind.__name__} without"
        with pytest.raises(ValueError, match=message):
            cuda_graphs._check_optimizer(kind(network_of().parameters()))

    def test_optimizer_that_can_be_captured(self):
        cuda_graphs._check_optimizer(sgd(network_of()))
        parameters = network_of().parameters()
        cuda_graphs._check_optimizer(torch.optim.AdamW(parameters, capturable=True))


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

    def make(step, network, optimizer, warm_up=2):
        failing.network = network
        failing.owner = cuda_graphs._Captured(step, optimizer, [], stream, warm_up)
        return failing.owner

    make.failing = failing
    return make


class TestOrder:
    """What happens in which call, with a graph that is none."""

    def test_gives_what_the_step_gives(self, fake):
        network, other = network_of(), network_of()
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        usual = step_of(other, torch.optim.SGD(other.parameters(), lr=0.1))
        step = fake(step_of(network, optimizer), network, optimizer)
        for number, batch in enumerate([*batches(5), *batches(1, size=3), *batches(2)]):
            assert (step.graph is None) == (number < 3)
            found = step(*batch)
            torch.testing.assert_close(found, usual(*batch))
            assert not any(value.requires_grad for value in found)
        torch.testing.assert_close(network.state_dict(), other.state_dict())

    def test_results_are_not_overwritten(self, fake):
        network = network_of()
        optimizer = sgd(network)
        step = fake(step_of(network, optimizer), network, optimizer, warm_up=1)
        found = [step(*batch)[0] for batch in batches(4)]
        assert len({float(loss) for loss in found}) == 4

    def test_single_tensor(self, fake):
        network = network_of()
        optimizer = sgd(network)
        of_both = step_of(network, optimizer)
        step = fake(lambda *batch: of_both(*batch)[0], network, optimizer)
        assert step(*batches(1)[0]).shape == ()

    def test_setting_that_changes_is_refused(self, fake):
        network = network_of()
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        step = fake(step_of(network, optimizer), network, optimizer, warm_up=1)
        first, second, third = batches(3)
        step(*first)
        step(*second)
        optimizer.param_groups[0]["lr"] = 0.01
        with pytest.raises(RuntimeError, match=r"captured with .*'lr': 0\.1.*now it has .*'lr': 0"):
            step(*third)
        optimizer.param_groups[0]["lr"] = 0.1
        step(*third)

    def test_rate_that_is_a_tensor_may_change(self, fake):
        network = network_of()
        optimizer = torch.optim.SGD(network.parameters(), lr=torch.tensor(0.1))
        step = fake(step_of(network, optimizer), network, optimizer, warm_up=1)
        for number, batch in enumerate(batches(3)):
            optimizer.param_groups[0]["lr"].fill_(0.1 / (1 + number))
            step(*batch)

    def test_batch_on_another_device(self, fake):
        network = network_of()
        optimizer = sgd(network)
        step = fake(step_of(network, optimizer), network, optimizer)
        (images, labels) = batches(1)[0]
        with pytest.raises(ValueError, match=r"batch: expected all on cpu, .*got one on meta"):
            step(images.to("meta"), labels)

    @pytest.mark.parametrize(
        ("error", "message"),
        [
            (
                RuntimeError("operation not permitted when stream is capturing"),
                "it must read no value, .* (operation not permitted when stream is capturing)",
            ),
            (torch.cuda.OutOfMemoryError("CUDA out of memory"), "make the batch smaller (CUDA out"),
        ],
    )
    def test_step_that_cannot_be_captured(self, fake, error, message):
        network = network_of()
        optimizer = sgd(network)
        step = fake(step_of(network, optimizer), network, optimizer, warm_up=1)
        fake.failing.error = error
        step(*batches(1)[0])
        said = f"step: cannot be captured: .*{message}".replace("(", r"\(").replace(")", r"\)")
        for _ in range(2):  # it does not go on without being asked
            with pytest.raises(RuntimeError, match=said):
                step(*batches(1)[0])


def test_groups_are_counted_without_waiting():
    losses = torch.tensor([1.0, 2.0, 4.0, 8.0], requires_grad=True)
    groups = torch.tensor([0, 2, 2, 0])
    weights = torch.tensor([0.2, 0.3, 0.5])
    loss, _ = group_dro(losses, groups, weights, step_size=0.1)
    means = torch.tensor([4.5, 0.0, 3.0])
    expected = ((weights.log() + 0.1 * means).softmax(0) * means).sum()
    torch.testing.assert_close(loss, expected)


def penalties(generator):
    """Return penalties of the library by name, each of network, logits, labels and images."""
    weights = torch.full((3,), 1 / 3, device="cuda")

    def landscape(network, *_):
        view = reglib.evaluation_mode(network)
        images = _[2]
        return reglib.importance_landscape(view, images, generator=generator, create_graph=True)

    return {
        "none": None,
        "input_gradient": lambda n, y, t, x: reglib.input_gradient_penalty(y, t, x),
        "logit_gradient": lambda n, y, t, x: reglib.logit_gradient_penalty(y, t, x),
        "marginal_density": lambda n, y, t, x: reglib.marginal_density_penalty(
            y, x, generator=generator
        ),
        "score_matching": lambda n, y, t, x: reglib.score_matching_penalty(
            n, y, t, x, generator=generator, trace="taylor"
        ),
        "input_hessian": lambda n, y, t, x: reglib.input_hessian_penalty(
            y, t, x, generator=generator
        ),
        "cure": lambda n, y, t, x: reglib.cure_penalty(n, y, t, x),
        "finite_difference": lambda n, y, t, x: reglib.finite_difference_penalty(n, y, t, x),
        "adversarial": lambda n, y, t, x: reglib.adversarial_penalty(
            n, y, t, x, epsilon=0.1, step_size=0.1, random_start=True, generator=generator
        ),
        "curvature": lambda *given: reglib.curvature_penalty(landscape(*given)),
        "target": lambda *given: reglib.target_penalty(
            landscape(*given), torch.ones(8, 8, device="cuda")
        ),
        "group_dro": lambda n, y, t, x: (
            group_dro(cross_entropy(y, t, reduction="none"), t, weights, step_size=0.1).loss
        ),
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

    @pytest.mark.parametrize("name", NAMES)
    def test_each_penalty(self, name):
        usual, graph = self.both(name)
        torch.testing.assert_close(graph, usual, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("optimizer", OPTIMIZERS)
    def test_each_optimizer(self, optimizer):
        usual, graph = self.both(optimizer=optimizer)
        torch.testing.assert_close(graph, usual, rtol=1e-4, atol=1e-5)

    def test_fast_double_backward(self):
        usual, graph = self.both(fast=True)
        torch.testing.assert_close(graph, usual, rtol=1e-4, atol=1e-5)

    def test_autocast(self):
        usual, graph = self.both(context=lambda: torch.autocast("cuda", torch.bfloat16))
        torch.testing.assert_close(graph, usual, rtol=2e-2, atol=2e-2)

    def test_reads_no_value_and_a_generator_goes_on(self):
        network = network_of().cuda()
        made, generator = sgd(network), torch.Generator("cuda").manual_seed(5)
        drawn = captured(
            lambda images, labels: torch.rand(3, generator=generator, device="cuda"),
            made,
            generators=[generator],
        )
        values = [drawn(*batches(1, device="cuda")[0]) for _ in range(6)]
        again = torch.Generator("cuda").manual_seed(5)
        expected = [torch.rand(3, generator=again, device="cuda") for _ in range(6)]
        torch.testing.assert_close(values, expected)
        generator.manual_seed(5)
        torch.testing.assert_close(drawn(*batches(1, device="cuda")[0]), expected[0])

    def test_step_that_waits(self):
        network = network_of().cuda()
        made = sgd(network)
        usual = step_of(network, made)

        def step(*batch):
            loss, penalty = usual(*batch)
            return loss * float(loss.detach()), penalty

        waits = captured(step, made, warm_up=1)
        batch = batches(1, device="cuda")[0]
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
