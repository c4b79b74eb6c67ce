"""A training step as one CUDA graph: Python and the launches of its kernels are paid for once.

The step of a small network is mostly launches, and a penalty on a gradient adds many. A captured
step replays them all at once. It has *not been measured* on a GPU yet.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor
from torch.optim import SGD, Optimizer

from reglib._checks import check_positive, check_type, expected

Step = Callable[..., Any]
Results = Tensor | tuple[Tensor, ...]
ADVICE = "it must read no value, copy nothing from the CPU and keep its shapes"
IF_FULL = "a graph holds the memory of a whole step: make the batch smaller"


def captured(
    step: Step, optimizer: Optimizer, *, generators: Sequence[Generator] = (), warm_up: int = 3
) -> Step:
    """Return a training step that is captured in a CUDA graph once, and then replayed.

    The step is all of it: forward pass, loss, penalty, backward pass, optimizer. It runs as it is
    in its first calls, is captured in the next one, and replayed from then on. A batch of another
    shape or type, such as the last one of an epoch, always runs as it is. What comes back are
    copies on the GPU: nothing waits for the GPU until you read a value of them.

    Kernels are recorded, Python is not: what Python decides is decided for good, such as the mode
    of the network, a strength, or a branch. A number that changes has to be a tensor, whose value
    is set in place. Checks of values (finite images, classes out of range) are made in the calls
    before the capture alone. Batch normalisation updates its statistics in each replay. Enter
    `torch.autocast` inside the step. Other threads, such as those of a loader, may use the GPU.

    On the CPU this is the step itself.

    Args:
        step: takes the tensors of a batch, and returns a tensor or a tuple of them. It sets
            gradients to None before the backward pass, as `optimizer.zero_grad()` does, and reads
            no value: no `.item()`, no `print(loss)`, no copy from the CPU.
        optimizer: what the step calls; SGD, or one made with `capturable=True`. A learning rate
            that changes is `lr=torch.tensor(0.1, device="cuda")`, and `lr.fill_(0.01)` changes it;
            SGD takes such a rate with `fused=True`.
        generators: those that the step draws from, on the GPU; the default one needs no mention.
            They go on in each replay, and can be seeded anew between calls.
        warm_up: calls before the capture, at least one, in which optimizers make their state.

    Raises:
        ValueError: an optimizer that cannot be captured, or generators on another device than its
            parameters; in a call, a batch on another device.
        RuntimeError: in a call, the step cannot be captured, or a setting of the optimizer that is
            no tensor has changed since.

    >>> network = torch.nn.Linear(3, 2)
    >>> sgd = torch.optim.SGD(network.parameters(), lr=0.1)
    >>> def step(images, labels):
    ...     loss = torch.nn.functional.cross_entropy(network(images), labels)
    ...     sgd.zero_grad()
    ...     loss.backward()
    ...     sgd.step()
    ...     return loss.detach()
    >>> float(captured(step, sgd)(torch.zeros(4, 3), torch.tensor([0, 1, 0, 1]))) > 0
    True
    """
    check_type("optimizer", optimizer, Optimizer)
    check_positive(warm_up=warm_up)
    device: torch.device = optimizer.param_groups[0]["params"][0].device
    for generator in generators:
        check_type("generators", generator, Generator)
        _check_device("generators", generator.device, device)
    if device.type != "cuda":
        return step
    _check_optimizer(optimizer)
    return _Captured(step, optimizer, generators, torch.cuda.Stream(device), warm_up)


def _check_device(name: str, got: torch.device, device: torch.device) -> None:
    if got != device:
        what = f"all on {device}, where the parameters of the optimizer are"
        raise expected(name, what, f"one on {got}")


def _check_optimizer(optimizer: Optimizer) -> None:
    """Refuse what counts its steps on the CPU, where no graph sees them."""
    if not all(g.get("capturable", isinstance(optimizer, SGD)) for g in optimizer.param_groups):
        what = "SGD, or one made with capturable=True, as Adam, AdamW and RMSprop can be"
        raise expected("optimizer", what, f"{type(optimizer).__name__} without it")


@dataclass(eq=False)
class _Captured:
    step: Step
    optimizer: Optimizer
    generators: Sequence[Generator]
    stream: Any
    warm_up: int
    shapes: Any = None
    graph: Any = None
    batch: Sequence[Tensor] = ()  # what the graph reads
    results: Results = ()
    settings: Any = None

    def __call__(self, *batch: Tensor) -> Results:
        for tensor in batch:
            _check_device("batch", tensor.device, self.stream.device)
        shapes = [(tensor.shape, tensor.dtype) for tensor in batch]
        self.shapes = self.shapes or shapes
        if shapes != self.shapes or self.warm_up > 0:
            self.warm_up -= shapes == self.shapes
            usual = torch.cuda.current_stream(self.stream.device)
            self.stream.wait_stream(usual)  # the steps before take turns on that of the capture
            with torch.cuda.stream(self.stream):
                results = _copy_results(self.step(*batch))
            usual.wait_stream(self.stream)
            return results
        if self.graph is None:
            self._capture(batch)
        if (settings := _settings(self.optimizer)) != self.settings:
            raise RuntimeError(
                f"optimizer: captured with {self.settings}, and now it has {settings}; what "
                "changes must be a tensor, set in place: see `captured`"
            )
        for target, source in zip(self.batch, batch):
            target.copy_(source)
        self.graph.replay()
        return _copy_results(self.results)

    def _capture(self, batch: Sequence[Tensor]) -> None:
        graph, self.batch = torch.cuda.CUDAGraph(), [tensor.clone() for tensor in batch]
        for generator in self.generators:
            graph.register_generator_state(generator)
        try:
            # Of errors in the same thread: those of a loader may pin memory meanwhile.
            with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
                self.results = self.step(*(tensor.detach() for tensor in self.batch))
        except RuntimeError as error:
            first: BaseException = error
            while first.__context__:  # the end of a capture that failed raises, too
                first = first.__context__
            advice = IF_FULL if isinstance(first, torch.cuda.OutOfMemoryError) else ADVICE
            raise RuntimeError(f"step: cannot be captured: {advice} ({first})") from first
        self.graph, self.settings = graph, _settings(self.optimizer)


def _settings(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return the settings of an optimizer that a graph holds as they are."""
    groups = (group.items() for group in optimizer.param_groups)
    return [{n: v for n, v in g if n != "params" and not isinstance(v, Tensor)} for g in groups]


def _copy_results(results: Results) -> Results:
    """Return results without a graph, which the next replay does not overwrite."""
    if isinstance(results, Tensor):
        return results.detach().clone()
    return tuple(result.detach().clone() for result in results)
