"""Check arguments: settings, networks, images, logits and labels."""

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from reglib._torch_private import BatchNorm

NAMES = """dropout dropout1d dropout2d dropout3d feature_dropout alpha_dropout
feature_alpha_dropout""".split()
DROPOUTS: set[Any] = {f for m in (F, torch) for name in NAMES if (f := getattr(m, name, None))}

HINTS = {
    "groups": "; leave out samples without a group",
    "generator": "; torch.Generator(device).manual_seed(0) makes one",
    "images": "; from a loader of pairs, pass (images for images, _ in loader)",
    "logits": "; take the logits from the output of the network",
    "output of model": "; wrap the network in a module that returns the logits alone",
}


def expected(name: str, what: str, got: object) -> ValueError:
    """Return the error that names an argument, what was expected and what came.

    >>> expected("k", "a positive integer", -1)
    ValueError('k: expected a positive integer, got -1')
    """
    return ValueError(f"{name}: expected {what}, got {got}")


def may_be_read(values: Tensor) -> bool:
    """Whether values can be read: no, while a CUDA graph is captured, which computes nothing."""
    return not (values.is_cuda and torch.cuda.is_current_stream_capturing())


def check_type(name: str, value: object, kind: type) -> None:
    """Raise a ValueError unless a value is an instance of a class of PyTorch.

    >>> check_type("labels", [1, 0], Tensor)
    Traceback (most recent call last):
    ValueError: labels: expected a PyTorch Tensor, got list
    """
    if not isinstance(value, kind):
        got = f"{type(value).__name__}{HINTS.get(name, '')}"
        raise expected(name, f"a PyTorch {kind.__name__}", got)


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Raise a ValueError unless a value is one of the choices.

    >>> check_choice("norm", "l3", ["linf", "l2"])
    Traceback (most recent call last):
    ValueError: norm: expected linf or l2, got 'l3'
    """
    if value not in (words := list(choices)):
        raise expected(name, " or ".join(words), repr(value))


def check_positive(**values: float) -> None:
    """Raise a ValueError that names the first value that is not positive."""
    for name, value in values.items():
        if not value > 0:
            raise expected(name, "a positive number", value)


def check_network(model: nn.Module) -> None:
    """Raise a ValueError if a module is in training mode or couples the samples of a batch."""
    check_type("model", model, nn.Module)
    for name, module in model.named_modules():
        kind = f"{type(module).__name__} {name!r}" if name else type(module).__name__
        # A view by `evaluation_mode` evaluates in either mode.
        if module.training and not getattr(type(model), "_reglib_evaluates", False):
            raise ValueError(
                f"model: expected a network in evaluation mode, but {kind} is in training mode; "
                "call model.eval() first"
            )
        if isinstance(module, BatchNorm) and module.running_mean is None:
            raise ValueError(
                f"model: expected images that do not influence one another, but {kind} normalises "
                "by statistics of the batch; give it running statistics"
            )


def check_images(images: Tensor) -> None:
    """Raise a ValueError unless `images` is a batch of finite floating-point values."""
    check_type("images", images, Tensor)
    if not images.is_floating_point():
        raise expected("images", "floating-point values", images.dtype)
    if images.ndim < 2 or images.numel() == 0:
        got = f"shape {tuple(images.shape)}; add the batch dimension by images[None]"
        raise expected("images", "a batch (B, C, H, W) of at least one image", got)
    check_finite("images", images)


def check_logits(logits: Tensor, n_images: int) -> None:
    """Raise a ValueError unless each image has a row of at least two logits, all finite."""
    check_finite("logits", check_logits_shape(logits, n_images, least=2))


def check_logits_shape(logits: Tensor, n_images: int, *, least: int = 1) -> Tensor:
    """Return the logits; raise a ValueError unless each image has a row of `least` or more."""
    check_type("output of model", logits, Tensor)
    if logits.ndim != 2 or len(logits) != n_images or logits.shape[1] < least:
        more = f" with at least {least} classes" if least > 1 else ""
        what = f"logits of shape ({n_images}, classes){more}"
        raise expected("model", what, tuple(logits.shape))
    return logits


def check_labels(labels: Tensor, logits: Tensor) -> None:
    """Raise a ValueError unless `labels` holds one class index for each row of logits."""
    check_type("logits", logits, Tensor)
    check_indices("labels", labels, len(logits), logits.shape[-1])


def check_indices(name: str, indices: Tensor, n_samples: int, n_kinds: int) -> None:
    """Raise a ValueError unless each sample has an index from 0 to `n_kinds` - 1."""
    check_type(name, indices, Tensor)
    if indices.dtype != torch.int64 or indices.shape != (n_samples,):
        what = f"integers (torch.int64) of shape ({n_samples},), one for each sample"
        raise expected(name, what, f"{indices.dtype} of shape {tuple(indices.shape)}")
    if may_be_read(indices) and len(outside := indices[(indices < 0) | (indices >= n_kinds)]):
        got = f"{int(outside[0])}{HINTS.get(name, '')}"
        raise expected(name, f"indices from 0 to {n_kinds - 1}", got)


def check_finite(name: str, values: Tensor, hint: str = "") -> None:
    """Raise a ValueError that names the first image with infinity or NaN."""
    finite = values.isfinite().flatten(1).all(1)
    if may_be_read(values) and (wrong := (~finite).nonzero()[:, 0].tolist()):
        raise ValueError(
            f"{name}: expected finite values, got infinity or NaN for image {wrong[0]}"
            f"{f' and {len(wrong) - 1} more' if wrong[1:] else ''}; "
            f"{hint or 'check the range of the images, and the weights'}"
        )


class NoDropout(TorchFunctionMode):
    """Refuse dropout that is active even in evaluation mode."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in DROPOUTS:
            settings = dict(zip(("p", "training"), args[1:3], strict=False)) | kwargs
            training = settings.get("training", settings.get("train", True))
            if training and settings.get("p", 0.5) > 0:
                raise ValueError(
                    f"model: expected a deterministic network, but it calls {func.__name__} "
                    "with training=True in evaluation mode; pass training=self.training there"
                )
        return func(*args, **kwargs)
