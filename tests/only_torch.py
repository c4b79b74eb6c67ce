"""Take a training step with each penalty of reglib, while reglib may import only torch.

`tests/test_library.py` runs this file in its own process: it imports only torch and reglib.
"""

import builtins
import importlib
import pkgutil
import sys

import torch
from torch import nn
from torch.nn.functional import cross_entropy

ALLOWED = {"torch", "triton", "reglib", *sys.stdlib_module_names}
import_as_usual = builtins.__import__


def refuse(name, globals=None, locals=None, fromlist=(), level=0):
    """Refuse imports of reglib other than torch, Triton and the standard library."""
    importer = (globals or {}).get("__name__", "")
    if level == 0 and importer.split(".")[0] == "reglib" and name.split(".")[0] not in ALLOWED:
        raise ModuleNotFoundError(f"{importer} imports {name}", name=name)
    return import_as_usual(name, globals, locals, fromlist, level)


builtins.__import__ = refuse

import reglib  # noqa: E402

assert not torch.cuda.is_initialized(), "importing reglib chose a device"
for module in pkgutil.walk_packages(reglib.__path__, "reglib."):
    needs_triton = module.name == "reglib.top_gap.kernels"
    if not needs_triton or importlib.util.find_spec("triton"):
        module.name == "reglib.__main__" or importlib.import_module(module.name)

torch.manual_seed(0)
images, labels = torch.rand(6, 1, 12, 12), torch.arange(6) % 3
layers = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()
backbone = nn.Sequential(*layers, nn.Conv2d(4, 4, 3, stride=2, padding=1), nn.ReLU())
network = reglib.TopGAPNet(backbone, 3, k=0.5, width=4, image_size=12)
model = reglib.fast_double_backward(network)
target = reglib.data_smoothness([images])


def seeded():
    return {"generator": torch.Generator().manual_seed(0)}


def landscape():
    evaluated = reglib.evaluation_mode(network)
    return reglib.importance_landscape(evaluated, images, **seeded(), create_graph=True)


def groups(y, x):
    losses = cross_entropy(y, labels, reduction="none")
    return reglib.group_dro(losses, labels, torch.full((3,), 1 / 3), step_size=0.01).loss


def pooled_l1(logits, x):
    return reglib.top_gap_and_l1(network.class_maps(x), k=0.5).l1


PENALTIES = {
    "activation_l1": lambda y, x: reglib.activation_l1([network.class_maps(x)]),
    "adversarial_penalty": lambda y, x: reglib.adversarial_penalty(
        model, y, labels, x, epsilon=0.1, step_size=0.1, **seeded()
    ),
    "class_map_l1": lambda y, x: reglib.class_map_l1(network.class_maps(x)),
    "cure_penalty": lambda y, x: reglib.cure_penalty(model, y, labels, x),
    "curvature_penalty": lambda y, x: reglib.curvature_penalty(landscape()),
    "finite_difference_penalty": lambda y, x: reglib.finite_difference_penalty(model, y, labels, x),
    "group_dro": groups,
    "input_gradient_penalty": lambda y, x: reglib.input_gradient_penalty(y, labels, x),
    "input_hessian_penalty": lambda y, x: reglib.input_hessian_penalty(y, labels, x, **seeded()),
    "logit_gradient_penalty": lambda y, x: reglib.logit_gradient_penalty(y, labels, x),
    "marginal_density_penalty": lambda y, x: reglib.marginal_density_penalty(y, x, **seeded()),
    "score_matching_penalty": lambda y, x: reglib.score_matching_penalty(
        model, y, labels, x, **seeded()
    ),
    "target_penalty": lambda y, x: reglib.target_penalty(landscape(), target),
    "top_gap_and_l1": pooled_l1,
}
named = {name for name in reglib.__all__ if name.endswith(("_penalty", "_l1", "_dro"))}
assert named == set(PENALTIES), named ^ set(PENALTIES)

for name, penalty in PENALTIES.items():
    before = [parameter.detach().clone() for parameter in network.parameters()]
    optimizer, x = torch.optim.SGD(network.parameters(), 0.1), images.clone().requires_grad_()
    logits = model(x)
    value = penalty(logits, x).mean()
    optimizer.zero_grad()
    (cross_entropy(logits, labels) + 0.1 * value).backward()
    optimizer.step()
    after = list(network.parameters())
    assert value.isfinite(), name
    assert all(p.isfinite().all() for p in after), name
    assert any((p != q).any() for p, q in zip(after, before, strict=True)), name

loss = reglib.surrogate_loss(reglib.evaluation_mode(network).eval(), images, labels)
for method in (reglib.cafo, reglib.caso):
    assert method(loss).maps.shape == images.shape
assert not {"numpy", "matplotlib", "pandas", "suite"} & set(sys.modules)
print("ok", len(PENALTIES))
