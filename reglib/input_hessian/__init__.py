r"""The Hessian of the cross-entropy with respect to the input, never formed.

.. math:: H = \nabla_x^2 H(y, \hat y) = W (\mathrm{diag}(p) - p p^T) W^T

is the Hessian of one image's own loss, in nats, where the network is piecewise linear. It does not
depend on the label: the label changes the gradient :math:`W (p - y)` only by a locally constant
term.

>>> import torch
>>> network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(2, 2, bias=False)).eval()
>>> _ = torch.nn.init.eye_(network[1].weight)  # p = (1/2, 1/2), so H = 1/4 [[1, -1], [-1, 1]]
>>> hessian = closed_form_hessian(network, torch.zeros(1, 1, 1, 2))
>>> hessian.product(torch.tensor([[[[1.0, 0.0]]]]))
tensor([[[[ 0.2500, -0.2500]]]])
>>> hessian_eigenpairs(hessian).values
tensor([[0.5000]], dtype=torch.float64)
"""

from reglib.input_hessian.decomposition import Decomposition, decomposition
from reglib.input_hessian.lanczos import (
    Eigenpairs,
    hessian_eigenpairs,
    leading_eigenpairs,
    random_start,
)
from reglib.input_hessian.products import (
    InputHessian,
    closed_form_hessian,
    input_hessian,
    true_hessian,
)

__all__ = [
    "Decomposition", "Eigenpairs", "InputHessian", "closed_form_hessian", "decomposition",
    "hessian_eigenpairs", "input_hessian", "leading_eigenpairs", "random_start", "true_hessian",
]  # fmt: skip
