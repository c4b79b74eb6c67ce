"""A network to be measured, with the images that it is shown."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from reglib.double_backward import folded_copy
from suite import metrics
from suite.data import ImageData, Split, load_data, to_float
from suite.errors import UsageError, unknown
from suite.metrics.saliency_methods import SALIENCIES
from suite.networks import network_inputs
from suite.training.loop import memory_format
from suite.units import Network, Pretrained


class Result(NamedTuple):
    """One value for each image, (B,), and tensors to keep, such as maps."""

    per_image: Tensor
    tensors: dict[str, Tensor] = {}


def checked_test_split(
    own: ImageData, shown: ImageData, name: str, count: int | None, *, labelled: bool = True
) -> Split:
    """Return the test split of `shown`, if a network trained on `own` can take `count` of it.

    Raises:
        UsageError: fewer images than asked for, images of another shape, or, if the labels are
            needed (`labelled`), more classes.
    """
    if count is not None and count > len(shown.test.images):
        raise UsageError(
            f"n_images: expected at most {len(shown.test.images)} for the test split "
            f"of {name!r}, got {count}"
        )
    if shown.shape != own.shape:
        raise UsageError(
            f"data set {name!r}: expected images of shape {own.shape} as in training, "
            f"got {shown.shape}"
        )
    if labelled and len(shown.classes) > len(own.classes):
        raise UsageError(
            f"data set {name!r}: expected at most the {len(own.classes)} classes of "
            f"the network, got {len(shown.classes)}"
        )
    return shown.test


class Subject:
    """A trained network in evaluation mode, with the images of its data set.

    `folded` is a copy of `network`, faster because its batch normalisation is folded. `remembered`
    is for what several measurements need.
    """

    def __init__(self, network: nn.Module, unit: Network, data: ImageData) -> None:
        self.network = network
        self.folded = folded_copy(network)
        self.unit = unit
        self.data = data
        self.remembered: dict[Any, Tensor] = {}
        self.device = next(network.parameters()).device
        self.max_bytes = metrics.CHUNK_BYTES * (1 if self.device.type == "cpu" else 128)

    def test_images(
        self,
        count: int | None,
        data: str | None = None,
        *,
        first: int = 0,
        step: int = 1,
        labelled: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """Return `count` test images as the network takes them, (B, C, H, W), and labels.

        They are those at `first`, `first` + `step`, and so on.

        Raises:
            UsageError: see `checked_test_split`.
        """
        pixels, labels = self.test_bytes(count, data, first=first, step=step, labelled=labelled)
        return self.as_inputs(pixels), labels

    def test_bytes(
        self,
        count: int | None,
        data: str | None = None,
        *,
        first: int = 0,
        step: int = 1,
        labelled: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """Return test images in bytes, (B, C, H, W), and labels; see `test_images`."""
        name = data or self.unit.data
        last = None if count is None else first + (count - 1) * step + 1
        shown = load_data(data) if data else self.data
        test = checked_test_split(self.data, shown, name, last, labelled=labelled)
        chosen = slice(first, last, step)
        return test.images[chosen].to(self.device), test.labels[chosen].to(self.device)

    @property
    def pixel_range(self) -> tuple[float, float]:
        """Values that black and white get.

        Raises:
            UsageError: a network that others have trained, with a range for each colour.
        """
        if isinstance(self.unit, Pretrained):
            raise UsageError(
                "expected a network with one pixel_range for all colours, got "
                f"{self.unit.network!r}, which takes them normalised"
            )
        return self.unit.pixel_range

    def as_inputs(self, pixels: Tensor) -> Tensor:
        """Return images in bytes as the network takes them."""
        if isinstance(self.unit, Pretrained):
            images = network_inputs(self.unit.network, pixels)
        else:
            images = to_float(pixels, self.pixel_range)
        return images.contiguous(memory_format=memory_format(self.network, self.device))

    def batches(
        self, n_images: int, first: int = 0, step: int = 1, *, size: int = 4
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Go through test images and labels, a few at a time; see `test_images`."""
        images, labels = self.test_images(n_images, first=first, step=step)
        return zip(images.split(size), labels.split(size), strict=True)

    def maps_of(self, saliency: str) -> Callable[[Tensor, Tensor], Tensor]:
        """Return the saliency of (images, class_index), channels summed, (B, 1, H, W)."""
        if saliency not in SALIENCIES:
            raise unknown("saliency", saliency, SALIENCIES)
        method = SALIENCIES[saliency]
        return lambda images, labels: method(self.folded, images, labels).sum(1, keepdim=True)

    def generator(self, seed: int) -> torch.Generator:
        """Return a source of random numbers on the device of the network."""
        return torch.Generator(self.device).manual_seed(seed)
