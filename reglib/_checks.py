"""Input checks: of names, and of networks, images and labels before a derivative is taken."""

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from reglib._torch_private import BatchNorm

NAMES = """dropout dropout1d dropout2d dropout3d feature_dropout alpha_dropout
feature_alpha_dropout""".split()
DROPOUTS: set[Any] = {f for of in (F, torch) for name in NAMES if (f := getattr(of, name, None))}

HINTS = {
    "groups": "; leave out samples without a group",
    "generator": "; torch.Generator(device).manual_seed(0) makes one",
    "images": "; of a loader of pairs give the images alone, (images for images, _ in loader)",
    "logits": "; take the logits out of what the network returns",
    "output of model": "; give a module that calls the network and returns its logits alone",
}


def expected(name: str, what: str, got: object) -> ValueError:
    """Return the error for an argument that is not what it must be.

    >>> expected("k", "a positive integer", -1)
    ValueError('k: expected a positive integer, got -1')
    """
    return ValueError(f"{name}: expected {what}, got {got}")


def may_be_read(values: Tensor) -> bool:
    """Whether values may be looked at: not while a CUDA graph is captured, which computes none."""
    return not (values.is_cuda and torch.cuda.is_current_stream_capturing())


def check_type(name: str, value: object, kind: type) -> None:
    """Raise a ValueError unless a value is a tensor, a module or a generator.

    >>> check_type("labels", [1, 0], Tensor)
    Traceback (most recent call last):
    ValueError: labels: expected a PyTorch Tensor, got list
    """
    if not isinstance(value, kind):
        got = f"{type(value).__name__}{HINTS.get(name, '')}"
        raise expected(name, f"a PyTorch {kind.__name__}", got)


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Raise a ValueError unless a value is one of a few words.

    >>> check_choice("norm", "l3", ["linf", "l2"])
    Traceback (most recent call last):
    ValueError: norm: expected linf or l2, got 'l3'
    """
    if value not in (words := list(choices)):
        raise expected(name, " or ".join(words), repr(value))


def check_positive(**values: float) -> None:
    """Raise a ValueError that names the first of some values that is not positive."""
    for name, value in values.items():
        if not value > 0:
            raise expected(name, "a positive number", value)


def check_network(model: nn.Module) -> None:
    """Raise a ValueError that names a module in training mode or that couples the samples."""
    check_type("model", model, nn.Module)
    for name, module in model.named_modules():
        kind = f"{type(module).__name__} {name!r}" if name else type(module).__name__
        # A view by `evaluation_mode` has a mode of its own.
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
    """Raise a ValueError unless there is a row of at least two finite logits for each image."""
    check_finite("logits", check_logits_shape(logits, n_images, least=2))


def check_logits_shape(logits: Tensor, n_images: int, *, least: int = 1) -> Tensor:
    """Return logits, or raise a ValueError unless each image has a row of `least` classes."""
    check_type("output of model", logits, Tensor)
    if logits.ndim != 2 or len(logits) != n_images or logits.shape[1] < least:
        more = f" with at least {least} classes" if least > 1 else ""
        what = f"logits of shape ({n_images}, classes){more}"
        raise expected("model", what, tuple(logits.shape))
    return logits


def check_labels(labels: Tensor, logits: Tensor) -> None:
    """Raise a ValueError unless `labels` holds a class of the network for each image."""
    check_type("logits", logits, Tensor)
    check_indices("labels", labels, len(logits), logits.shape[-1])


def check_indices(name: str, indices: Tensor, n_samples: int, n_kinds: int) -> None:
    """Raise a ValueError unless there is an index below `n_kinds` for each sample."""
    check_type(name, indices, Tensor)
    if indices.dtype != torch.int64 or indices.shape != (n_samples,):
        what = f"integers (torch.int64) of shape ({n_samples},), one for each sample"
        raise expected(name, what, f"{indices.dtype} of shape {tuple(indices.shape)}")
    if may_be_read(indices) and len(outside := indices[(indices < 0) | (indices >= n_kinds)]):
        got = f"{int(outside[0])}{HINTS.get(name, '')}"
        raise expected(name, f"indices from 0 to {n_kinds - 1}", got)


def check_finite(name: str, values: Tensor, hint: str = "") -> None:
    """Raise a ValueError that says for which image there is infinity or NaN."""
    finite = values.isfinite().flatten(1).all(1)
    wrong = (~finite).nonzero()[:, 0].tolist() if may_be_read(values) else []
    if wrong:
        raise ValueError(
            f"{name}: expected finite values, got infinity or NaN for image {wrong[0]}"
            f"{f' and {len(wrong) - 1} more' if wrong[1:] else ''}; "
            f"{hint or 'look at the range of the images and at the weights'}"
        )


class NoDropout(TorchFunctionMode):
    """Refuse dropout that is active whatever the mode of the network."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in DROPOUTS:
            settings = dict(zip(("p", "training"), args[1:3], strict=False)) | kwargs
            training = settings.get("training", settings.get("train", True))
            if training and settings.get("p", 0.5) > 0:
                raise ValueError(
                    f"model: expected a network without random parts, but it calls {func.__name__} "
                    "with training=True in evaluation mode; pass training=self.training there"
                )
        return func(*args, **kwargs)
