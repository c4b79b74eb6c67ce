"""Networks of your own: `timm:NAME`, `torchvision:NAME` or `FILE.py:FUNCTION`, with their weights.

Weights are read from files on this machine, and never as code. A checksum of its file and its
weights identifies a network, so that results belong to its contents, not to its name.
"""

import difflib
import hashlib
import importlib.util
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from reglib._checks import check_logits, check_type
from reglib.top_gap.backbones import Normalise
from suite.errors import UsageError, expected

PACKAGES = ("timm", "torchvision")
SIZE = 224  # pixels a side, unless options or the configuration say otherwise
NAMED = 3  # a message suggests at most so many names
LONGEST = 400  # characters of torch's message on weights that do not fit
# A network, its configuration, and the file of weights that was downloaded for it.
Candidate = tuple[nn.Module, Mapping[str, Any], Path | None]


class OwnNetwork(NamedTuple):
    """A network that takes pixels in [0, 1], its number of classes, and its identity."""

    network: nn.Module
    classes: int
    options: dict[str, Any]


def is_own(name: str) -> bool:
    """Whether a name belongs to a network of the user; other networks are packaged."""
    return ":" in name


def own_network(name: str, content: str = "", **options: Any) -> OwnNetwork:
    """Make a network and try it.

    Args:
        name: `timm:NAME`, `torchvision:NAME`, or `FILE.py:FUNCTION` for a function that returns
            the network.
        content: checksum that the network must have.
        options: `weights`, a file (safetensors, or one that torch loads as weights only);
            `random_weights`, in place of those that timm or torchvision have downloaded; `size`,
            pixels a side; `mean` and `std` of the pixels in [0, 1], for each colour. Empty options
            are taken from the configuration of timm or torchvision.

    Raises:
        UsageError: unknown name, no weights, weights that do not fit, or no network.
    """
    settings = {option: value for option, value in options.items() if value}
    source, _, function = name.rpartition(":")
    packaged = source in PACKAGES
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "IProgress not found")
        network, config, file = (_from_package if packaged else _from_file)(source, function)
    file = settings.get("weights") or (None if "random_weights" in settings else file)
    if file:
        load_weights(network, Path(file))
    elif packaged and "random_weights" not in settings:
        advice = "give them by '-p weights FILE', or take random ones by '-p random_weights true'"
        raise UsageError(f"{name}: its weights are not on this machine; {advice}")
    size = settings.get("size") or config.get("input_size", (3, SIZE, SIZE))[-1]
    mean = [*(settings.get("mean") or config.get("mean") or [0.0] * 3)]
    std = [*(settings.get("std") or config.get("std") or [1.0] * 3)]
    if not len(mean) == len(std) == 3 or min(std) <= 0:
        raise expected("mean, std", "three numbers each, of std above 0", f"{mean}, {std}")
    model = nn.Sequential(Normalise(mean, std), network).eval().requires_grad_(False)
    checksum = _checksum(b"" if packaged else Path(source).read_bytes(), network)
    if content not in ("", checksum):
        raise UsageError(f"{name}: file or weights changed while it was measured; run again")
    identity = settings | {"size": size, "mean": mean, "std": std, "content": checksum}
    return OwnNetwork(model, _count_classes(name, model, size), identity)


def _unknown(name: str, known: Iterable[str]) -> UsageError:
    near = difflib.get_close_matches(name.rpartition(":")[2], [*known], n=NAMED)
    hint = f"; did you mean {', '.join(near)}?" if near else ""
    return UsageError(f"unknown network {name!r}{hint}")


def _from_package(package: str, name: str) -> Candidate:
    """Build a network of timm or torchvision, with its configuration and file of weights."""
    import timm
    from huggingface_hub import try_to_load_from_cache
    from torchvision import models

    torch.manual_seed(0)  # the same random weights in each process, whatever an import drew
    if package == "timm":
        if not timm.is_model(name):
            raise _unknown(f"timm:{name}", timm.list_models())
        network = timm.create_model(name, pretrained=False)
        config: Any = network.pretrained_cfg
    else:
        if name not in (known := models.list_models(module=models)):
            raise _unknown(f"torchvision:{name}", known)
        weights = models.get_model_weights(name).DEFAULT
        inputs, network = weights.transforms(), models.get_model(name, weights=None)
        config = {"input_size": inputs.crop_size, "mean": inputs.mean, "std": inputs.std}
        config |= {"url": weights.url}
    files = [Path(torch.hub.get_dir(), "checkpoints", Path(config.get("url") or "none").name)]
    for file in ("model.safetensors", "pytorch_model.bin") if config.get("hf_hub_id") else ():
        cached = try_to_load_from_cache(config["hf_hub_id"], file)
        files += [Path(cached)] if isinstance(cached, str) else []
    return network, config, next((file for file in files if file.is_file()), None)


def _from_file(path: str, function: str) -> Candidate:
    """Call a function in a Python file; its network may have a configuration like timm's."""
    file = Path(path)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if not file.is_file() or spec is None or spec.loader is None:
        valid = "a packaged network, timm:NAME, torchvision:NAME or FILE.py:FUNCTION"
        raise expected("network", valid, f"{file}:{function}; there is no such file of Python")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        if function not in vars(module):
            raise _unknown(f"{file}:{function}", vars(module))
        torch.manual_seed(0)  # see `_from_package`
        network = vars(module)[function]()
        check_type(f"{function}()", network, nn.Module)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"{file}:{function}: {type(error).__name__}: {error}") from error
    return network, getattr(network, "pretrained_cfg", None) or {}, None


def load_weights(network: nn.Module, file: Path) -> None:
    """Load weights from a file, which may be a checkpoint; no code in it is run.

    Raises:
        UsageError: no such file, more than weights in it, or weights of another network.
    """
    from timm.models import load_state_dict

    try:
        state = load_state_dict(str(file), weights_only=True)
    except Exception as error:  # a file that is no archive can fail in any way
        valid = "weights alone: safetensors, or torch.save(network.state_dict(), FILE)"
        got = "no such file" if not file.is_file() else f"a file that holds more, or none ({error})"
        raise expected(f"weights {file}", valid, got.split("\n")[0]) from error
    try:
        network.load_state_dict(state)
    except (RuntimeError, TypeError) as error:
        mismatch = " ".join(str(error).partition(":")[2].split())
        raise expected(f"weights {file}", "those of the network", mismatch[:LONGEST]) from error


@torch.no_grad()
def _count_classes(name: str, network: nn.Module, size: int) -> int:
    """Count the classes of a network by its logits for one grey image.

    Raises:
        UsageError: the network cannot take it, or does not return finite logits of several classes.
    """
    try:
        logits = network(torch.full((1, 3, size, size), 0.5))
        check_logits(logits, 1)
    except Exception as error:
        valid = f"a network of images (B, 3, {size}, {size}) to logits (B, classes)"
        message = str(error).partition("\n")[0]
        raise expected(name, valid, f"{type(error).__name__}: {message}; see '-p size'") from error
    return int(logits.shape[1])


def _checksum(text: bytes, network: nn.Module) -> str:
    digest = hashlib.sha256(text)
    for name, value in network.state_dict().items():
        digest.update(f"{name}{tuple(value.shape)}{value.dtype}".encode())
        digest.update(value.contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:32]
