"""The feature maps of a convolutional network, found by running it on the shape of an image."""

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from reglib._checks import check_type, expected
from reglib._common import copy_network


class FeatureMap(NamedTuple):
    """The output of the module `name`, of shape `(B, channels, *size)`."""

    name: str
    channels: int
    size: tuple[int, int]


class FeatureMaps(NamedTuple):
    """The last feature map of each size, and what the head of the network pools."""

    maps: list[FeatureMap]
    final: FeatureMap


def backbone_of(name: str, *, pretrained: bool) -> nn.Module:
    """Build a network of timm or, where that has none of this name, of torchvision.

    Raises:
        ValueError: neither has it, or they are not installed.
    """
    try:
        import timm
        from torchvision import models
    except ImportError as error:
        raise ValueError(
            f"backbone: {name!r} is the name of a network in timm or torchvision, which cannot be "
            f'imported ({error}); pip install ".[backbones]" in the checkout, or give a network'
        ) from error
    if timm.is_model(name):
        return timm.create_model(name, pretrained=pretrained)
    if name in models.list_models(models):
        return models.get_model(name, weights="DEFAULT" if pretrained else None)
    known = {*timm.list_models(), *models.list_models(models)}
    near = difflib.get_close_matches(name, known, n=3)
    got = f"{name!r}; near it: {', '.join(near) or 'none'}"
    raise expected("backbone", "the name of a network in timm or torchvision", got)


# Of the weights of torchvision, and of those of timm that do not say.
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


class Normalise(nn.Module):
    """Bring pixels in [0, 1] to the range of a network, (x - mean) / std for each colour."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        for name, values in (("mean", mean), ("std", std)):
            self.register_buffer(name, torch.tensor(values).view(3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        return (images - self.mean) / self.std


def normalised(network: nn.Module) -> nn.Sequential:
    """Put the normalisation that the weights of a network were trained with before it."""
    about = getattr(network, "pretrained_cfg", {})
    values = (about.get(name, default) for name, default in IMAGENET.items())
    return nn.Sequential(Normalise(*values), network)


def feature_maps(model: nn.Module, *, image_size: int = 224) -> FeatureMaps:
    r"""List the last feature map of each size that a network computes, from large to small.

    A feature map is the output of the last module of its size that holds a convolution with a
    kernel above 1 x 1, together with the normalisation and the activation that follow it. So
    pooling makes no map, and a 1 x 1 convolution before the classifier belongs to the head. An
    activation module that is used in several places is not seen where it follows: let each place
    have its own.

    Args:
        model: a convolutional network in Python. A copy of it is run, without data.
        image_size: height and width of the image that it is run on.

    Raises:
        ValueError: no convolution; it cannot be run on that image; maps that do not shrink.

    >>> layers = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 8, 3, stride=2), nn.ReLU()
    >>> listed = feature_maps(nn.Sequential(*layers), image_size=32)
    >>> [(name, channels, size) for name, channels, size in listed.maps]
    [('1', 4, (30, 30)), ('3', 8, (14, 14))]
    """
    shapes = _shapes(model, image_size)
    modules = dict(model.named_modules())
    spatial = {n: shape[2:] for n, shape in shapes.items() if _is_spatial(modules[n])}
    inside = set(_blocks(model, "", spatial))
    blocks = [name for name in shapes if name in inside]
    maps: dict[tuple[int, ...], FeatureMap] = {}
    last: tuple[int, ...] | None = None
    for name in blocks:
        size = shapes[name][2:]
        convolutions = [m for m in modules[name].modules() if isinstance(m, nn.Conv2d)]
        if any(_is_spatial(m) for m in convolutions):
            last = size
        elif convolutions or size != last:
            last = None
        if last is not None:
            maps[size] = _feature_map(name, shapes)
    if len(maps) < 2:
        raise ValueError(
            f"backbone: expected feature maps that shrink, but on an image of {image_size} x "
            f"{image_size} pixels {type(model).__name__} has maps of "
            f"{sorted(set(spatial.values()), reverse=True)} only"
        )
    ordered = sorted(maps.values(), key=lambda m: -m.size[0] * m.size[1])
    final = [name for name in blocks if shapes[name][2:] == ordered[-1].size][-1]
    return FeatureMaps(ordered, _feature_map(final, shapes))


def _shapes(model: nn.Module, image_size: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the feature maps of all modules by name, in order of execution."""
    check_type("backbone", model, nn.Module)
    probe = copy_network(model).to("meta").eval()
    first = next((m for m in probe.modules() if isinstance(m, nn.Conv2d)), None)
    if first is None:
        got = f"{type(model).__name__}, which holds no nn.Conv2d"
        raise expected("backbone", "a convolutional network", got)
    shapes: dict[str, tuple[int, ...]] = {}

    def record(name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.ndim == 4 and output[0, 0].numel() > 1:
            shapes.setdefault(name, tuple(output.shape))

    for name, module in probe.named_modules():
        module.register_forward_hook(partial(record, name))
    image = first.weight.new_zeros(1, first.in_channels, image_size, image_size)
    try:
        with torch.no_grad():
            probe(image)
    except Exception as error:
        raise ValueError(
            f"backbone: {type(model).__name__} cannot be run on an image of shape "
            f"{tuple(image.shape[1:])} ({error}); give the image_size that it is "
            "made for, or larger images"
        ) from error
    return shapes


def _is_spatial(module: nn.Module) -> bool:
    return isinstance(module, nn.Conv2d) and max(module.kernel_size) > 1


def _blocks(module: nn.Module, name: str, spatial: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    """Take a network apart down to modules whose convolutions make maps of one size.

    A block that shrinks its input by its second convolution stays whole.
    """
    start = f"{name}." if name else ""
    sizes = {size for n, size in spatial.items() if n == name or n.startswith(start)}
    line = not name or isinstance(module, nn.Sequential)
    if len(sizes) > (1 if line else 2):
        for child, part in module.named_children():
            yield from _blocks(part, f"{start}{child}", spatial)
    else:
        yield name


def _feature_map(name: str, shapes: Mapping[str, tuple[int, ...]]) -> FeatureMap:
    _, channels, height, width = shapes[name]
    return FeatureMap(name, channels, (height, width))


class _Complete(Exception):
    """All feature maps were met: what follows is not traced."""


class _Tracer(fx.Tracer):
    """Follow a symbol up to the last feature map, so that the head may be anything."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.names = names
        self.outputs: dict[str, fx.Node] = {}

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        names = getattr(getattr(m.forward, "__code__", None), "co_names", ())
        # A symbol has one mode: what asks for its own stays whole.
        leaf = super().is_leaf_module(m, module_qualified_name) or "training" in names
        holds = any(name.startswith(f"{module_qualified_name}.") for name in self.names)
        return module_qualified_name in self.names or (leaf and not holds)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        output = super().call_module(m, forward, args, kwargs)
        name = self.path_of_module(m)
        if name in self.names:
            self.outputs[name] = output.node
        if len(self.outputs) == len(self.names):
            raise _Complete
        return output


def extractor(model: nn.Module, names: Sequence[str]) -> fx.GraphModule:
    """Return a copy of a network that ends with the outputs of some of its modules.

    The copy holds only the modules that are needed, under the names that they have in the network.
    (`torchvision.models.feature_extraction` keeps what assertions in the head look at, and cannot
    trace heads whose flow depends on shapes.)

    Raises:
        ValueError: `torch.fx` cannot trace the network.
    """
    model = copy_network(model).eval()
    tracer = _Tracer(names)
    try:
        tracer.trace(model)
    except _Complete:
        # A graph that does not know its tracer: a saved network would keep the tracer's arguments.
        plain, nodes = fx.Graph(), dict[fx.Node, fx.Node]()
        plain.graph_copy(tracer.graph, nodes)
        plain.output([nodes[tracer.outputs[name]] for name in names])
        graph = fx.GraphModule(model, plain)
        graph.graph.eliminate_dead_code()
        graph.delete_all_unused_submodules()
        graph.recompile()
        return graph.train()
    except Exception as error:
        got = f"{type(model).__name__}: {error}"
        raise expected("backbone", "a network that torch.fx can trace", got) from error
    raise ValueError(f"backbone: expected modules {', '.join(names)} in the path of an image")
