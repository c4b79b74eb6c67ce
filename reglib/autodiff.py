"""Derivatives with respect to the input, of first and second order."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from reglib._checks import check_type, expected
from reglib._torch_private import has_one_derivative

Map = Callable[[Tensor], Tensor]


class OnceDifferentiable(ValueError):
    """Raised for a second derivative through a function that has only one derivative."""


def input_gradient(
    outputs: Tensor, inputs: Tensor, *, create_graph: bool = False, keep_graph: bool = False
) -> Tensor:
    r"""Differentiate the sum of `outputs` with respect to `inputs`.

    .. math:: g = \nabla_x \sum_j f_j(x)

    Where the samples of a batch do not influence one another (no batch normalisation in training
    mode), row `b` of the result is the gradient of `outputs[b]` alone.

    Args:
        outputs: values computed from `inputs`, of any shape.
        inputs: tensor that requires a gradient, of any shape.
        create_graph: build a graph of the gradient, so that it can be differentiated again.
        keep_graph: keep the graph of `outputs` for further derivatives; `create_graph` implies it.

    Returns:
        The gradient, of the shape of `inputs`.

    Raises:
        ValueError: `inputs` does not require a gradient, or `outputs` does not depend on it.
        OnceDifferentiable: with `create_graph`, a function between the two is marked
            `once_differentiable` (see `torch.autograd.function`), or made by `torch.compile`. Stock
            autograd may then return a wrong second derivative, such as zero, without an error.

    >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> input_gradient(x.square(), x)
    tensor([2., 4.])
    """
    check_type("inputs", inputs, Tensor)
    if not inputs.requires_grad:
        got = "requires_grad=False; call inputs.requires_grad_() before the forward pass"
        raise expected("inputs", "a tensor that requires a gradient", got)
    if not outputs.requires_grad:
        got = "a tensor without a graph; was the forward pass run under torch.no_grad() or "
        got += "inference_mode(), or before inputs.requires_grad_()?"
        raise expected("outputs", "values computed from inputs with gradients enabled", got)
    if create_graph:
        _guard(outputs)
    keep: Any = {"create_graph": create_graph, "retain_graph": create_graph or keep_graph}
    (gradient,) = torch.autograd.grad(outputs.sum(), inputs, allow_unused=True, **keep)
    if gradient is None:
        got = "independent values; call inputs.requires_grad_() before the forward pass, and "
        got += "detach nothing in it"
        raise expected("outputs", "values that depend on inputs", got)
    return gradient


def _guard(outputs: Tensor) -> None:
    """Make functions with one derivative refuse to build a graph of it.

    Functions that are not between outputs and inputs, such as those of weights, do not run.
    """
    nodes: list[Any] = [outputs.grad_fn]
    seen: set[Any] = {None}
    while nodes:
        if (node := nodes.pop()) not in seen:
            seen.add(node)
            nodes += [parent for parent, _ in node.next_functions]
            if has_one_derivative(node):
                node.register_prehook(partial(_refuse, node.name()))


def _refuse(name: str, _: object) -> None:
    if torch.is_grad_enabled():
        got = f"{name}, marked once_differentiable or made by torch.compile; write its backward "
        got += "in functions of torch without the mark, or do not compile"
        raise OnceDifferentiable(f"outputs: expected functions with two derivatives, got {got}")


def hessian_product(
    gradient: Tensor, inputs: Tensor, vector: Tensor, *, create_graph: bool = False
) -> Tensor:
    r"""Multiply a vector by the Hessian, given the gradient with its graph.

    .. math:: \nabla_x \langle g(x), v \rangle = H v

    Args:
        gradient: result of `input_gradient` with `create_graph`.
        inputs: the tensor that `gradient` was taken with respect to.
        vector: of the shape of `inputs`.
        create_graph: build a graph of the product, so that it can be differentiated.

    Returns:
        The product, of the shape of `inputs`; zero where the gradient is constant.
    """
    if not gradient.requires_grad:
        return torch.zeros_like(inputs)
    v = torch.empty_like(gradient).copy_(vector)
    return torch.autograd.grad(
        gradient, inputs, v, retain_graph=True, create_graph=create_graph, materialize_grads=True
    )[0]


class Linearisation(NamedTuple):
    """The value of a function at one point, with products by its Jacobian and its transpose.

    Args:
        outputs: the values, (B, c).
        push: Jacobian-vector product, from the shape of the inputs, (B, ...), to (B, c).
        pull: vector-Jacobian product, from (B, c) to the shape of the inputs, (B, ...).
    """

    outputs: Tensor
    push: Map
    pull: Map


def linearise(function: Map, inputs: Tensor) -> Linearisation:
    r"""Evaluate a function once and keep its graph for products by its Jacobian.

    .. math:: \text{pull}(u) = J^T u, \qquad
       \text{push}(v) = \nabla_w \langle J^T w, v \rangle = J v

    `push` differentiates a vector-Jacobian product, which is linear in `w`. With
    `reglib.double_backward` this costs one forward pass and does not evaluate the function again;
    forward-mode differentiation evaluates it each time.

    Args:
        function: from (B, ...) to (B, c); samples must not influence one another.
        inputs: the point, (B, ...). Vectors are copied into its memory layout.

    Returns:
        Values and products, without a graph. They hold the memory of the graph of `function`.

    Raises:
        ValueError: the values do not depend on the inputs.

    >>> at = linearise(lambda x: x.square(), torch.tensor([[1.0, 3.0]]))
    >>> at.push(torch.tensor([[1.0, 1.0]])), at.pull(torch.tensor([[1.0, 0.0]]))
    (tensor([[2., 6.]]), tensor([[2., 0.]]))
    """
    x = inputs.detach().requires_grad_()
    with torch.enable_grad():
        outputs = function(x)
        w = torch.zeros_like(outputs, requires_grad=True)
        pulled = input_gradient(outputs * w, x, create_graph=True)

    def push(v: Tensor) -> Tensor:
        v = torch.empty_like(x).copy_(v)
        return torch.autograd.grad(pulled, w, v, retain_graph=True)[0]

    def pull(u: Tensor) -> Tensor:
        return torch.autograd.grad(outputs, x, u, retain_graph=True)[0]

    return Linearisation(outputs.detach(), push, pull)


def second_derivative(function: Map, inputs: Tensor) -> Map:
    r"""Return the Hessian-vector product of a function by differentiating twice.

    .. math:: v \mapsto \nabla_x \langle \nabla_x \textstyle\sum_b l_b(x), v \rangle = H v

    Args:
        function: one value for each sample, from (B, ...) to (B,).
        inputs: the point, (B, ...).

    Returns:
        The product, a function from (B, ...) to (B, ...); zero where the gradient is constant.

    Raises:
        ValueError: the values do not depend on the inputs.
    """
    x = inputs.detach().requires_grad_()
    with torch.enable_grad():
        gradient = input_gradient(function(x), x, create_graph=True)

    return lambda v: hessian_product(gradient, x, v)
