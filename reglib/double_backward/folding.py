"""Fold batch normalisation in evaluation mode into the convolution before it."""

import operator
from collections.abc import Callable, Mapping
from functools import partial, wraps
from types import MethodType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from reglib._common import copy_network
from reglib._torch_private import BatchNorm, is_hooked, saved_tensors_are_hooked
from reglib.double_backward.functions import Convolution
from reglib.double_backward.layers import ATTENTION, HANDLERS, FastLayers
from reglib.double_backward.layout import pick
from reglib.double_backward.modules import INSIDE, View, check, in_evaluation_mode, unwrap, view_of
from reglib.double_backward.normalisation import ScaleShift, scale_and_shift

PIECEWISE_LINEAR_MODULES: set[Any] = pick(
    nn,
    "Conv2d Linear ReLU ReLU6 LeakyReLU Hardtanh PReLU Identity Flatten PixelShuffle Dropout "
    "Dropout2d MaxPool2d AvgPool2d AdaptiveAvgPool2d AdaptiveMaxPool2d ZeroPad2d ReflectionPad2d",
)
PIECEWISE_LINEAR_FUNCTIONS: set[Any] = {
    *(function for function in HANDLERS if function not in ATTENTION),
    *pick(F, "linear dropout dropout2d pad interpolate"),
    *pick(torch, "flatten cat stack add sub mean sum squeeze unsqueeze _assert"),
    *pick(operator, "add iadd sub neg getitem eq"),
    getattr,
}
PIECEWISE_LINEAR_METHODS = set(
    "add add_ contiguous dim flatten mean permute relu relu_ reshape size squeeze sub sum "
    "transpose unsqueeze view".split()
)


class Folding(NamedTuple):
    """What `folded_copy` folds in a network, and what it cannot.

    Args:
        folded: for each folded batch normalisation, by name, the name of its convolution.
        kept: for each other batch normalisation, by name, the reason.
        nonlinear: for each node that is not known to be piecewise linear in the input, by name, the
            reason: modules, functions and methods outside of the `PIECEWISE_LINEAR_*` lists;
            products of values that vary with the input, such as computed weights; batch statistics;
            modules with hooks or with a `forward` of their own. If it is empty, the input gradient
            of a logit depends on the weights but not on the activations, and is differentiated in
            4F instead of 6F.
    """

    folded: dict[str, str]
    kept: dict[str, str]
    nonlinear: dict[str, str]


def evaluation_mode(model: nn.Module) -> Any:
    r"""Return a view of a network in evaluation mode, with batch normalisation folded.

    .. math:: s &= \gamma / \sqrt{\sigma^2 + \epsilon}, \\
       s (x * w + b - \mu) + \beta &= x * (s w) + (s (b - \mu) + \beta)

    Each call computes the folded weights, differentiable by all parameters. The view shares the
    state of the network and runs exact functions, like the view of `fast_double_backward`. During a
    call of the view, or of a method of the network's class, modules are in evaluation mode for this
    thread. Afterwards they are in their previous mode. So a view can be called during a training
    step, also of another thread. A submodule called alone, as in `view.features(images)`, runs in
    its own mode.

    Each call finds out what to fold, so that the network may change: every normalisation of the
    output of a convolution, by any modules or functions. No gradient passes through the output of a
    folded convolution. A network with hooks, which may need that gradient, is not folded. During a
    call the class of a module is a subclass of its class: use `isinstance`, not `type(m) is C`.

    Args:
        model: any network in Python.

    Raises:
        ValueError: TorchScript or quantised modules, `__slots__` in the class of the network, or a
            lazy module that was never called.
        RuntimeError: in a call, activation checkpointing in a network in training mode.
    """
    check(model, lazy=False)
    return view_of(unwrap(model), Evaluation)


def folded_copy(model: nn.Module) -> Any:
    """Return a copy of a network in evaluation mode, with batch normalisation folded.

    The copy is meant for a trained network: it does not follow later changes, and its parameters
    require no gradient. For first derivatives by the input it is faster than `evaluation_mode`.

    Raises:
        ValueError: as `evaluation_mode`.
    """
    folded = folding_of(model).folded
    model = copy_network(unwrap(model)).eval().requires_grad_(False)
    modules: dict[str, Any] = dict(model.named_modules())
    for norm_name, conv_name in folded.items():
        n, conv = modules[norm_name], modules[conv_name]
        s, t = scale_and_shift(n.weight, n.bias, n.running_mean, n.running_var, n.eps)
        weights = _fold(s, t, conv.weight, conv.bias)
        conv.weight, conv.bias = (nn.Parameter(v.to(conv.weight.dtype), False) for v in weights)
        model.set_submodule(norm_name, _remove_normalisation(n))
    return model


def _remove_normalisation(norm: nn.Module) -> nn.Module:
    """Return the rest of a layer: layers of timm include the activation."""
    if type(norm) is nn.BatchNorm2d:
        return nn.Identity().eval()
    rest = fx.symbolic_trace(norm)
    for node in rest.graph.find_nodes(op="call_function", target=F.batch_norm):
        node.replace_all_uses_with(_input(node))
        rest.graph.erase_node(node)
    rest.graph.eliminate_dead_code()
    return fx.GraphModule(rest, rest.graph).eval()


class Evaluation(View):
    """A view that calls layers in evaluation mode, and folds them."""

    _reglib_evaluates = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return torch.compiler.disable(Evaluation.__call__)(self, *args, **kwargs)
        tracer = getattr(next(iter((*args, *kwargs.values())), None), "tracer", None)
        if isinstance(tracer, fx.Tracer) and not isinstance(tracer, _Tracer):
            return tracer.create_proxy("call_module", tracer.path_of_module(self), args, kwargs)
        return _evaluate(self, super().__call__, *args, **kwargs)

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        runs = isinstance(value, MethodType) and (name == "forward" or not hasattr(nn.Module, name))
        if runs and id(self) not in INSIDE.get():
            return wraps(value)(partial(_evaluate, self, value))
        return value


def _evaluate(view: nn.Module, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    layers = _FoldingLayers()
    layers.switched = any(module.training for module in view.modules())
    layers.folds = not any(map(is_hooked, view.modules()))
    with layers, in_evaluation_mode(view):
        return function(*args, **kwargs)


class _FoldingLayers(FastLayers):
    """Give normalised convolutions the graph of one convolution with folded weights."""

    switched = folds = False  # whether modules were in training mode; whether none has hooks

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.switched and saved_tensors_are_hooked():
            raise RuntimeError(
                "evaluation_mode: expected no activation checkpointing, which runs layers after "
                "the call, in a network in training mode; call .eval() first"
            )
        result = super().__torch_function__(func, types, args, kwargs)
        return _fold_output(result) if func is F.batch_norm and self.folds else result


class _Known(Convolution):
    """A convolution whose output was computed before."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor | None, known: Any) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.geometry, output = known
        return output


def _fold_output(y: Tensor) -> Tensor:
    """Return y, with the graph of one convolution if y is the scaled output of a convolution."""
    norm: Any = y.grad_fn
    conv = norm.next_functions[0][0] if isinstance(norm, ScaleShift._backward_cls) else None
    if not isinstance(conv, Convolution._backward_cls):
        return y
    (before, s), (x, w) = norm.saved_tensors, conv.saved_tensors
    if before.retains_grad or before._backward_hooks:
        return y
    weight, bias = _fold(s, norm.shift, w, conv.bias)
    return _Known.apply(x, weight.to(w.dtype), bias, (conv.geometry, y.detach()))


def _fold(s: Tensor, t: Tensor, w: Tensor, b: Tensor | None) -> tuple[Tensor, Tensor]:
    return w * s.view(-1, 1, 1, 1), t if b is None else t + b * s


def folding_of(model: nn.Module) -> Folding:
    """Find out what `folded_copy` folds, by tracing a copy of the network.

    Raises:
        ValueError: as `evaluation_mode`.
    """
    check(model, lazy=False)
    modules: dict[str, Any] = dict(unwrap(model).named_modules())
    norms = [name for name, module in modules.items() if isinstance(module, BatchNorm)]
    try:
        probe = copy_network(unwrap(model)).to("meta")
        with in_evaluation_mode(probe), torch.random.fork_rng(devices=[]):
            graph = _Tracer().trace(probe)
    except Exception as error:  # noqa: BLE001 - networks do anything with a symbol
        opaque = f"the network cannot be traced: {error}"
        return Folding({}, dict.fromkeys(norms, opaque), {"model": opaque})
    norm_calls = _calls(graph, modules, nn.BatchNorm2d, F.batch_norm, "running_mean weight bias")
    conv_calls = _calls(graph, modules, nn.Conv2d, F.conv2d, "weight bias")
    altered = [n for n, m in modules.items() if is_hooked(m) or "forward" in vars(m)]
    changed = {n: f"{n or 'model'} has a hook or its own forward" for n in altered}
    folded: dict[str, str] = {}
    kept = dict.fromkeys(norms, "it is not called as a module of torch.nn")
    for node, name in norm_calls.items():
        kept[name] = _why_not_folded(node, conv_calls, modules)
        if changed:
            kept[name] = next(iter(changed.values()))
        elif modules[name].running_mean is None:
            kept[name] = "it has no running statistics"
        elif list(norm_calls.values()).count(name) > 1:
            kept[name] = "it is called more than once"
        if not kept[name]:
            folded[name] = conv_calls[_input(node)]
            del kept[name]
    varying: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "placeholder" or varying & {*node.all_input_nodes}:
            varying.add(node)
    reasons = {str(node): _why_nonlinear(node, modules, varying) for node in graph.nodes}
    return Folding(folded, kept, {name: why for name, why in reasons.items() if why} | changed)


class _Tracer(fx.Tracer):
    """A tracer that calls no hooks."""

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return super().call_module(m, m.forward, args, kwargs)


def _calls(
    graph: fx.Graph, modules: Mapping[str, nn.Module], kind: type, function: Any, names: str
) -> dict[fx.Node, str]:
    """Return the names of the modules of a class of torch.nn, by the nodes that call them.

    The class passes its state of these names to a function. A module of another class counts if its
    `forward` passes the same state to that function.
    """
    calls = {}
    for node in graph.nodes:
        if node.op == "call_module" and type(modules[str(node.target)]) is kind:
            calls[node] = str(node.target)
        elif node.op == "call_function" and node.target is function:
            name = [*node.meta.get("nn_module_stack", {"": ("",)}).values()][-1][0]
            state = modules[name]._parameters | modules[name]._buffers
            targets = [None if state.get(n, n) is None else f"{name}.{n}" for n in names.split()]
            arguments = [getattr(v, "target", v) for v in (*node.args, *node.kwargs.values())]
            if all(target in arguments for target in targets):
                calls[node] = name
    return calls


def _why_not_folded(
    norm: fx.Node, convs: Mapping[fx.Node, str], modules: Mapping[str, nn.Module]
) -> str:
    """Return why a batch normalisation cannot go into the convolution before it, or ""."""
    before = _input(norm)
    if before not in convs:
        return f"its input is {before}, which is not the output of a convolution"
    name = convs[before]
    weight = modules[name]._parameters.get("weight")
    if weight is None:
        return f"the weight of {name} is not a parameter"
    sharing = [p for m in modules.values() for p in m._parameters.values() if p is weight]
    parameters = f"{name}.weight", f"{name}.bias"
    reads = [n for n in norm.graph.nodes if n.target in parameters and {*n.users} - {before}]
    if reads or list(convs.values()).count(name) > 1 or len(sharing) > 1:
        return f"{name} or its weight is used more than once"
    if any(user is not norm and not _reads_shape(user) for user in before.users):
        return f"the output of {name} is used elsewhere too"
    return ""


def _input(node: fx.Node) -> Any:
    return node.args[0] if node.args else node.kwargs.get("input")


def _reads_shape(node: fx.Node) -> bool:
    name = node.args[1] if node.target is getattr else node.op == "call_method" and node.target
    return name in ("dim", "size", "ndim", "shape", "dtype", "device")


def _why_nonlinear(node: fx.Node, modules: Mapping[str, Any], varying: set[fx.Node]) -> str | None:
    """Return why a node is not known to be piecewise linear in the nodes that vary with the input.

    Return None for a node that is piecewise linear.
    """
    target: Any = node.target
    if node.op == "call_module":
        module = modules[target]
        if isinstance(module, BatchNorm) and module.running_mean is None:
            return f"{target} normalises by statistics of the batch"
        linear = type(module) in PIECEWISE_LINEAR_MODULES or isinstance(module, BatchNorm)
        return None if linear else f"{target} is a {type(module).__name__}"
    if node.op == "call_method":
        return None if target in PIECEWISE_LINEAR_METHODS else f"the method {target} is called"
    if node.op == "call_function":
        name, values = getattr(target, "__name__", target), [*node.args, *node.kwargs.values()]
        varies = [isinstance(v, fx.Node) and v in varying for v in values]
        if target in (F.conv2d, F.linear, F.batch_norm) and any(varies[1:]):
            return f"{name} is called with weights that depend on the input"
        if target is F.batch_norm and node.kwargs.get("training", [*node.args, *[False] * 6][5]):
            return f"{name} is called with training=True"
        scales = {operator.mul: sum(varies) == 1, operator.truediv: varies == [True, False]}
        if target not in PIECEWISE_LINEAR_FUNCTIONS and not scales.get(target):
            return f"{name} is called"
    return None
