"""Networks in evaluation mode with batch normalisation folded into the convolution before it."""

import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from reglib._common import copied
from reglib._torch_private import (
    BatchNorm,
    is_hooked_before,
    is_hooked_between,
    saved_tensors_are_hooked,
)
from reglib.double_backward.layers import ATTENTION, HANDLERS, FastLayers
from reglib.double_backward.modules import View, check, view_of, viewed
from reglib.double_backward.normalisation import scale_and_shift


def _named(module: Any, names: str) -> set[Any]:
    return {getattr(module, name) for name in names.split()}


PIECEWISE_LINEAR_MODULES = _named(
    nn,
    "Conv2d Linear ReLU ReLU6 LeakyReLU Hardtanh PReLU Identity Flatten PixelShuffle Dropout "
    "Dropout2d MaxPool2d AvgPool2d AdaptiveAvgPool2d AdaptiveMaxPool2d ZeroPad2d ReflectionPad2d",
)
PIECEWISE_LINEAR_FUNCTIONS: set[Any] = {
    *(function for function in HANDLERS if function not in ATTENTION),
    *_named(F, "linear dropout dropout2d pad interpolate"),
    *_named(torch, "flatten cat stack add sub mean sum squeeze unsqueeze _assert"),
    *_named(operator, "add iadd sub neg getitem eq"),
    getattr,
}
PIECEWISE_LINEAR_METHODS = set(
    "add add_ contiguous dim flatten mean permute relu relu_ reshape size squeeze sub sum "
    "transpose unsqueeze view".split()
)


class Folding(NamedTuple):
    """What `evaluation_mode` does to a network, and why it does no more.

    Args:
        folded: name of a convolution by name of the batch normalisation that goes into it.
        kept: reason by name of a batch normalisation that stays by itself.
        nonlinear: reason by name of what is not known to be linear on pieces. If nothing is, a
            logit's input gradient is differentiated in 4F, not 6F: it depends on the weights, but
            not on the activations.
    """

    folded: dict[str, str]
    kept: dict[str, str]
    nonlinear: dict[str, str]


def evaluation_mode(model: nn.Module) -> Any:
    r"""Return a view of a network in evaluation mode, with batch normalisation folded.

    .. math:: s &= \gamma / \sqrt{\sigma^2 + \epsilon}, \\
       s (x * w + b - \mu) + \beta &= x * (s w) + (s (b - \mu) + \beta)

    The folded weights are made anew in each call, differentiable by all parameters. The view shares
    the state of the network, as that of `fast_double_backward` does, and has its exact functions;
    while it is called, modules are in evaluation mode, and afterwards in the mode that they had. So
    it can be called in the midst of a training step. Hooks on a folded convolution see the
    normalised output; a pair whose convolution has a forward hook, or whose batch normalisation has
    a pre-hook, is not folded as long as it has.

    Args:
        model: any network in Python. `folding_of` says what is folded, and why the rest is not.

    Raises:
        ValueError: TorchScript or quantised modules, or a lazy module that was never called.
        RuntimeError: in the call, activation checkpointing in a network in training mode.
    """
    folded = folding_of(model).folded
    view = view_of(viewed(model), Evaluation)
    type(view)._reglib_folded = folded
    return view


def folded_copy(model: nn.Module) -> Any:
    """Return a copy of a network in evaluation mode, its batch normalisation folded once for all.

    For looking at a trained network: the copy does not follow it, and its parameters need no
    gradient. Where only the input is differentiated, and once, it is faster than `evaluation_mode`.

    Raises:
        ValueError: as `evaluation_mode`.
    """
    folded = folding_of(model).folded
    model = copied(viewed(model)).eval().requires_grad_(False)
    for norm_name, conv_name in folded.items():
        norm: Any = model.get_submodule(norm_name)
        conv: Any = model.get_submodule(conv_name)
        # A convolution that torch.fx has traced may have its missing bias written into the graph.
        fixed = not hasattr(conv, "bias")
        if not (fixed or is_hooked_before(conv) or is_hooked_between(conv, norm)):
            weight, bias = _fold(norm, conv.weight, conv.bias)
            conv.weight = nn.Parameter(weight, False)
            conv.bias = nn.Parameter(bias, False)
            model.set_submodule(norm_name, _without_normalisation(norm))
    return model


def _without_normalisation(norm: nn.Module) -> nn.Module:
    """Return what a layer does besides: timm's layers have the activation in them."""
    if type(norm) is nn.BatchNorm2d:
        return nn.Identity().eval()
    graph = fx.Tracer().trace(norm)
    for node in graph.find_nodes(op="call_function", target=F.batch_norm):
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)
    rest = fx.GraphModule(norm, graph)
    rest.graph.eliminate_dead_code()
    return fx.GraphModule(rest, rest.graph).eval()


class Evaluation(View):
    """A view that calls folded layers in evaluation mode."""

    _reglib_folded: Mapping[str, str] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return torch.compiler.disable(Evaluation.__call__)(self, *args, **kwargs)
        switched = any(module.training for module in self.modules())
        with in_evaluation_mode(self), _FoldedLayers(self, self._reglib_folded, switched):
            return super().__call__(*args, **kwargs)


Evaluation._reglib_make_view = evaluation_mode


@contextmanager
def in_evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Bring all modules into evaluation mode, and those that trained back afterwards."""
    training = [module for module in model.modules() if module.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True


class _FoldedLayers(FastLayers):
    """Give convolutions the weights into which their batch normalisation was folded."""

    def __init__(self, model: nn.Module, folded: Mapping[str, str], switched: bool) -> None:
        super().__init__()
        self.switched = switched
        self.norms: dict[int, BatchNorm] = {}
        self.done: set[int] = set()
        for norm_name, conv_name in folded.items():
            conv: Any = model.get_submodule(conv_name)
            norm: Any = model.get_submodule(norm_name)
            if not is_hooked_between(conv, norm):
                self.norms[id(conv.weight)] = norm

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if saved_tensors_are_hooked():
            if self.switched:
                raise RuntimeError(
                    "evaluation_mode: expected no activation checkpointing in a network in "
                    "training mode, because it runs layers again after the call; call .eval() first"
                )
        elif func is F.conv2d and (norm := self.norms.get(id(args[1]))) is not None:
            args = (args[0], *_fold(norm, args[1], args[2]), *args[3:])
            self.done.add(id(norm.running_mean))
        elif func is F.batch_norm and id(args[1]) in self.done:
            return args[0]
        return super().__torch_function__(func, types, args, kwargs)


def _fold(norm: BatchNorm, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    mean, var = norm.running_mean, norm.running_var
    if mean is None or var is None:
        raise ValueError("model: expected running statistics, which were there when it was folded")
    s, t = scale_and_shift(norm.weight, norm.bias, mean, var, norm.eps)
    return weight * s.view(-1, 1, 1, 1), t if bias is None else t + bias * s


def folding_of(model: nn.Module) -> Folding:
    """Find out what `evaluation_mode` folds, by following a symbol through the network.

    Raises:
        ValueError: as `evaluation_mode`.
    """
    check(model)
    model = viewed(model)
    norms = {name: m for name, m in model.named_modules() if isinstance(m, BatchNorm)}
    try:
        with in_evaluation_mode(model):
            graph = fx.Tracer().trace(model)
    except Exception as error:  # noqa: BLE001 - whatever the network does with a symbol
        opaque = f"the network cannot be traced: {error}"
        return Folding({}, dict.fromkeys(norms, opaque), {"model": opaque})
    modules = dict(model.named_modules())
    norm_calls = _calls(graph, modules, (nn.BatchNorm2d, F.batch_norm, "running_mean"))
    conv_calls = _calls(graph, modules, (nn.Conv2d, F.conv2d, "weight"))
    folded: dict[str, str] = {}
    kept = dict.fromkeys(norms, "it is not called as a module of torch.nn")
    for node, name in norm_calls.items():
        conv, reason = _convolution_before(node, conv_calls, modules)
        calls = list(norm_calls.values()).count(name)
        if norms[name].running_mean is None:
            reason = "it has no running statistics"
        elif calls > 1:
            reason = "it is called more than once"
        if reason is None:
            folded[name] = conv
            kept.pop(name)
        else:
            kept[name] = reason
    reasons = {str(node): _why_nonlinear(node, modules) for node in graph.nodes}
    return Folding(folded, kept, {name: why for name, why in reasons.items() if why})


def _calls(
    graph: fx.Graph, modules: Mapping[str, nn.Module], layer: tuple[type, Callable[..., Any], str]
) -> dict[fx.Node, str]:
    """Return the calls of modules of a kind, by node.

    A layer is the class of torch.nn, the function that it calls, and the attribute that goes there
    as second argument: so shows a subclass that is not of torch.nn.
    """
    kind, function, attribute = layer
    calls = {}
    for node in graph.nodes:
        if node.op == "call_module" and type(modules[str(node.target)]) is kind:
            calls[node] = str(node.target)
        elif node.op == "call_function" and node.target is function and len(node.args) > 2:
            given = node.args[1]
            if isinstance(given, fx.Node) and given.op == "get_attr":
                name, _, end = str(given.target).rpartition(".")
                if end == attribute:
                    calls[node] = name
    return calls


def _convolution_before(
    norm: fx.Node, convs: Mapping[fx.Node, str], modules: Mapping[str, nn.Module]
) -> tuple[str, str | None]:
    """Return the convolution that a batch normalisation can go into, and why it cannot."""
    before = norm.args[0]
    if not isinstance(before, fx.Node) or before not in convs:
        return "", f"its input is {before}, which is not the output of a convolution"
    name = convs[before]
    weight = modules[name].weight
    if "weight" not in dict(modules[name].named_parameters(recurse=False)):
        return name, f"the weight of {name} is not a parameter"
    sharing = [m for m in modules.values() if getattr(m, "weight", None) is weight]
    if list(convs.values()).count(name) > 1 or len(sharing) > 1:
        return name, f"{name} or its weight is used more than once"
    if any(user is not norm and not _reads_shape(user) for user in before.users):
        return name, f"the output of {name} is used elsewhere too"
    return name, None


def _reads_shape(node: fx.Node) -> bool:
    if node.op == "call_method":
        return node.target in ("dim", "size")
    return node.target is getattr and node.args[1] in ("ndim", "shape", "dtype", "device")


def _why_nonlinear(node: fx.Node, modules: Mapping[str, nn.Module]) -> str | None:
    """Return why a node of the graph is not known to be linear on pieces; None if it is."""
    target: Any = node.target
    if node.op == "call_module":
        module = modules[target]
        if isinstance(module, BatchNorm) and module.running_mean is None:
            return f"{target} normalises by statistics of the batch"
        linear = type(module) in PIECEWISE_LINEAR_MODULES or isinstance(module, BatchNorm)
        return None if linear else f"{target} is a {type(module).__name__}"
    if node.op == "call_method":
        return None if target in PIECEWISE_LINEAR_METHODS else f"the method {target} is called"
    if node.op == "call_function" and target not in PIECEWISE_LINEAR_FUNCTIONS:
        nodes = [argument if isinstance(argument, fx.Node) else None for argument in node.args]
        varies = [n is not None and n.op != "get_attr" for n in nodes]  # buffers do not
        if (target is operator.mul and sum(varies) == 1) or (
            target is operator.truediv and varies == [True, False]
        ):
            return None
        return f"{getattr(target, '__name__', target)} is called"
    return None
