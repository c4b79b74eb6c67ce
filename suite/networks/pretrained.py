"""Pretrained networks and their input normalisation; `networks.yml` describes them."""

import functools
import hashlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from reglib.top_gap.backbones import Normalise
from suite.errors import DataMissing, check_name, expected
from suite.networks.defences import with_softplus
from suite.networks.yours import is_own, own_network
from suite.paths import data_folder, read_yaml

SHARPNESS = 10.0  # of softplus, in pretrained networks with smooth activations


@dataclass(frozen=True)
class Weights:
    """How to build a network, where its weights are, and what images it takes.

    Args:
        build: makes the network, with any weights.
        file: name of the file of weights.
        package: package that brings the file; None for `weights/FILE` in the folder of data.
        sha256: first digits of the checksum of the file.
        mean, std: of the pixels in [0, 1]; the weights were trained with (x - mean) / std.
        about, licence, how_to_get: texts for the reader.
        smooth: replace each ReLU6 when the weights are loaded (see `with_softplus`).
        title: name of the network in figures.
        size: pixels a side.
        classes: number of logits.
        last: name of the layer before the last ReLU6, in a network that uses this module of ReLU6
            several times (see `with_own_activation`).
    """

    build: Callable[[], nn.Module]
    file: str
    sha256: str
    mean: Sequence[float]
    std: Sequence[float]
    about: str
    licence: str
    how_to_get: str
    package: str | None = None
    smooth: bool = False
    title: str = ""
    size: int = 224
    classes: int = 1000
    last: str | None = None

    @property
    def path(self) -> Path:
        """Where the file of weights is, or should be."""
        if self.package is None:
            return data_folder() / "weights" / self.file
        spec = find_spec(self.package)
        folder = Path(self.package) if spec is None else Path(str(spec.origin)).parent
        return folder / self.file


def pretrained_weights(name: str) -> Weights:
    """Return the entry of `PRETRAINED` for a name.

    Raises:
        UsageError: unknown name.
    """
    check_name("pretrained network", name, PRETRAINED)
    return PRETRAINED[name]


def load_pretrained(name: str, options: Mapping[str, Any] | None = None) -> nn.Module:
    """Load a network in evaluation mode, with parameters that require no gradient.

    It takes pixels in [0, 1] and normalises them itself, so its gradients are with respect to
    pixels.

    Args:
        name: a key of `PRETRAINED`, or the name of a network of your own.
        options: options of a network of your own, see `suite.networks.yours.own_network`.

    Returns:
        Network from images, in the range of `network_inputs`, to logits.

    Raises:
        DataMissing: the weights are not on this machine; the message says how to get them.
        UsageError: unknown name, or weights with another checksum.
    """
    if options:
        return own_network(name, **options).network
    weights = pretrained_weights(name)
    check_weights(name)
    network = weights.build()
    network.load_state_dict(torch.load(weights.path, map_location="cpu", weights_only=True))
    if weights.smooth:
        network = with_softplus(network, beta=SHARPNESS)
    model = nn.Sequential(Normalise(weights.mean, weights.std), network)
    return model.eval().requires_grad_(False)


def with_own_activation(network: nn.Module, name: str) -> nn.Module:
    """Insert, in place, a separate ReLU6 after the last convolution of a pretrained network.

    The function stays the same, since a second ReLU6 changes nothing. A cut before the head would
    miss a module of ReLU6 that the network uses elsewhere too.
    """
    if last := pretrained_weights(name).last:
        path = f"1.{last}"
        network.set_submodule(path, nn.Sequential(network.get_submodule(path), nn.ReLU6()))
    return network


def check_weights(name: str) -> None:
    """Check that the weights of a network exist and have the expected checksum.

    Raises:
        DataMissing, UsageError: as `load_pretrained`.
    """
    if is_own(name):
        return  # a network of the user is loaded before it is measured
    weights = pretrained_weights(name)
    path, advice = weights.path, weights.how_to_get.replace("DATA", str(data_folder()))
    if not path.exists():
        raise DataMissing(f"weights of {name!r} are not at {path}. To get them: {advice}")
    sha256 = _sha256(path, path.stat().st_mtime_ns)
    if not sha256.startswith(weights.sha256):
        valid = f"the weights of {name!r}, whose SHA-256 begins with {weights.sha256}"
        raise expected(f"{path}", valid, f"{sha256}. Remove the file and get it again: {advice}")


def network_inputs(name: str, images: Tensor) -> Tensor:
    """Bring images to the range of pixels that a network takes, [0, 1].

    Args:
        name: a key of `PRETRAINED`, or the name of your own network, whose size is not checked.
        images: uint8 (B, 3, size, size).

    Returns:
        Floats of the same shape.

    Raises:
        UsageError: images with another type or size than those that the network was trained on.
    """
    if images.dtype != torch.uint8:
        valid = f"uint8 from 0 to 255, which {name!r} then scales as it was trained"
        raise expected("images", valid, images.dtype)
    size = images.shape[-1] if is_own(name) else pretrained_weights(name).size
    if images.ndim != 4 or images.shape[1:] != (3, size, size):
        valid = f"shape (B, 3, {size}, {size}) for {name!r}"
        got = f"{tuple(images.shape)}; see suite.data.files.read_photograph"
        raise expected("images", valid, got)
    return images.float() / 255


@functools.lru_cache(maxsize=8)
def _sha256(path: Path, changed: int) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _builder(function: str, **settings: Any) -> Callable[[], nn.Module]:
    """Return a function that calls a function of a package, named as MODULE:NAME."""
    return lambda: pkgutil.resolve_name(function)(**settings)


_DESCRIBED = read_yaml(Path(__file__).with_name("networks.yml"))
PRETRAINED = {
    name: Weights(**{**entry, "build": _builder(**entry["build"])})
    for name, entry in _DESCRIBED.items()
    if "build" in entry
}


def title(name: str) -> str:
    """Return the name of a network in figures.

    >>> title("lenet5")
    'LeNet-5'
    """
    return _DESCRIBED[name]["title"] if name in _DESCRIBED else name
