"""Capture a training step in one CUDA graph, so that Python runs and kernels launch only once.

The step of a small network is mostly kernel launches, and a gradient penalty adds many. A captured
step replays them all at once. Its speed has *not been measured* on a GPU yet.
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

    The step holds the forward pass, loss, penalty, backward pass and optimizer. It runs as usual in
    its first calls, is captured in the next call, and is replayed in all later ones. A batch of
    another shape or type, such as the last batch of an epoch, always runs as usual. The results are
    copies on the GPU: nothing waits for the GPU until you read a value.

    The graph records kernels, not Python. What Python decides is fixed by the capture: the mode of
    the network, a strength, a branch. A number that changes must be a tensor that is set in place.
    Values are checked (finite images, classes in range) only in the calls before the capture. Batch
    normalisation updates its statistics in each replay. Enter `torch.autocast` inside the step.
    Other threads, such as those of a loader, may use the GPU.

    On the CPU the step itself is returned.

    Args:
        step: takes the tensors of a batch and returns a tensor or a tuple of tensors. It sets
            gradients to None before the backward pass, as `optimizer.zero_grad()` does, and reads
            no value: no `.item()`, no `print(loss)`, no copy from the CPU.
        optimizer: the optimizer that the step calls: SGD, or one made with `capturable=True`. A
            learning rate that changes is `lr=torch.tensor(0.1, device="cuda")`, changed by
            `lr.fill_(0.01)`; SGD takes such a rate with `fused=True`.
        generators: generators on the GPU that the step draws from, besides the default one. They
            advance in each replay, and can be seeded anew between calls.
        warm_up: number of calls before the capture, at least one, in which the optimizer creates
            its state.

    Raises:
        ValueError: the optimizer cannot be captured, or a generator is on another device than the
            parameters; in a call, the batch is on another device.
        RuntimeError: in a call, the step cannot be captured, or a setting of the optimizer that is
            not a tensor has changed since the capture.

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
    """Refuse optimizers that count their steps on the CPU, where no graph sees them."""
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
    batch: Sequence[Tensor] = ()  # the tensors that the graph reads
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
            self.stream.wait_stream(usual)  # these steps run on the stream of the capture
            with torch.cuda.stream(self.stream):
                results = _copy_results(self.step(*batch))
            usual.wait_stream(self.stream)
            return results
        if self.graph is None:
            self._capture(batch)
        if (settings := _settings(self.optimizer)) != self.settings:
            raise RuntimeError(
                f"optimizer: captured with {self.settings}, and now it has {settings}; a setting "
                "that changes must be a tensor, set in place: see `captured`"
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
            # Errors of this thread only: a loader's threads may pin memory meanwhile.
            with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
                self.results = self.step(*(tensor.detach() for tensor in self.batch))
        except RuntimeError as error:
            first: BaseException = error
            while first.__context__:  # ending a failed capture raises another error
                first = first.__context__
            advice = IF_FULL if isinstance(first, torch.cuda.OutOfMemoryError) else ADVICE
            raise RuntimeError(f"step: cannot be captured: {advice} ({first})") from first
        self.graph, self.settings = graph, _settings(self.optimizer)


def _settings(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return the settings of an optimizer that a capture fixes: all but tensors."""
    groups = (group.items() for group in optimizer.param_groups)
    return [{n: v for n, v in g if n != "params" and not isinstance(v, Tensor)} for g in groups]


def _copy_results(results: Results) -> Results:
    """Copy results, without their graph, so that the next replay does not overwrite them."""
    if isinstance(results, Tensor):
        return results.detach().clone()
    return tuple(result.detach().clone() for result in results)
