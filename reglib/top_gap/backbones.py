"""Find and extract the feature maps of a convolutional network."""

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
    """The last feature map of each size, large to small, and the map that the head pools."""

    maps: list[FeatureMap]
    final: FeatureMap


def backbone_of(name: str, *, pretrained: bool) -> nn.Module:
    """Build a network of timm or, if timm does not have it, of torchvision.

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
    names = {*timm.list_models(), *models.list_models(models)}
    similar = difflib.get_close_matches(name, names, n=3)
    got = f"{name!r}; similar names: {', '.join(similar) or 'none'}"
    raise expected("backbone", "the name of a network in timm or torchvision", got)


# The normalisation of torchvision's weights, and of timm's weights that specify none.
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


class Normalise(nn.Module):
    """Normalise pixels in [0, 1] for a network: (x - mean) / std for each colour."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        for name, values in (("mean", mean), ("std", std)):
            self.register_buffer(name, torch.tensor(values).view(3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        return (images - self.mean) / self.std


def normalised(network: nn.Module) -> nn.Sequential:
    """Put a network behind the normalisation that its weights were trained with."""
    config = getattr(network, "pretrained_cfg", {})
    values = (config.get(name, default) for name, default in IMAGENET.items())
    return nn.Sequential(Normalise(*values), network)


def feature_maps(model: nn.Module, *, image_size: int = 224) -> FeatureMaps:
    r"""List the last feature map of each size that a network computes, from large to small.

    A feature map is the output of the last module of its size with a convolution larger than
    1 x 1, after the normalisation and the activation that follow it. Pooling makes no feature map,
    and a 1 x 1 convolution before the classifier belongs to the head. An activation module that is
    called in several places is not recognised: give each place its own module.

    Args:
        model: a convolutional network in Python. A copy of it is run without data.
        image_size: height and width of the image that it is run on.

    Returns:
        The feature maps, and the map that the head pools.

    Raises:
        ValueError: the network has no convolution, cannot be run on that image, or has maps of one
            size only.

    >>> layers = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 8, 3, stride=2), nn.ReLU()
    >>> maps, _ = feature_maps(nn.Sequential(*layers), image_size=32)
    >>> [(name, channels, size) for name, channels, size in maps]
    [('1', 4, (30, 30)), ('3', 8, (14, 14))]
    """
    shapes = _shapes(model, image_size)
    modules = dict(model.named_modules())
    spatial = {n: shape[2:] for n, shape in shapes.items() if _is_spatial(modules[n])}
    units = set(_blocks(model, "", spatial))
    blocks = [name for name in shapes if name in units]
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
    """Return the shapes of the 4-d outputs by name of the module, in order of execution."""
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
    """Yield the names of the largest modules whose convolutions make maps of one size.

    A block that shrinks its input in its second convolution counts as one module.
    """
    start = f"{name}." if name else ""
    sizes = {size for n, size in spatial.items() if n == name or n.startswith(start)}
    is_sequence = not name or isinstance(module, nn.Sequential)
    if len(sizes) > (1 if is_sequence else 2):
        for child_name, child in module.named_children():
            yield from _blocks(child, f"{start}{child_name}", spatial)
    else:
        yield name


def _feature_map(name: str, shapes: Mapping[str, tuple[int, ...]]) -> FeatureMap:
    _, channels, height, width = shapes[name]
    return FeatureMap(name, channels, (height, width))


class _Complete(Exception):
    """Raised at the last feature map, to end the trace."""


class _Tracer(fx.Tracer):
    """Trace a network up to the last feature map, so that its head need not be traceable."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.names = names
        self.outputs: dict[str, fx.Node] = {}

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        names = getattr(getattr(m.forward, "__code__", None), "co_names", ())
        # A trace would fix the mode: do not trace into a module that reads it.
        is_leaf = super().is_leaf_module(m, module_qualified_name) or "training" in names
        has_map = any(name.startswith(f"{module_qualified_name}.") for name in self.names)
        return module_qualified_name in self.names or (is_leaf and not has_map)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        output = super().call_module(m, forward, args, kwargs)
        name = self.path_of_module(m)
        if name in self.names:
            self.outputs[name] = output.node
        if len(self.outputs) == len(self.names):
            raise _Complete
        return output


def extractor(model: nn.Module, names: Sequence[str]) -> fx.GraphModule:
    """Return a copy of a network that returns the outputs of some of its modules.

    The copy keeps only the modules that it needs, under their names in the network.
    (`torchvision.models.feature_extraction` also keeps what assertions in the head read, and cannot
    trace heads whose control flow depends on shapes.)

    Raises:
        ValueError: `torch.fx` cannot trace the network.
    """
    model = copy_network(model).eval()
    tracer = _Tracer(names)
    try:
        tracer.trace(model)
    except _Complete:
        # Copy the graph, since a saved network would keep the tracer's arguments.
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
    raise ValueError(f"backbone: expected an image to pass through modules {', '.join(names)}")
