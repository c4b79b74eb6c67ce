"""A network to be measured, with the images that it is shown."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from reglib.double_backward import folded_copy
from suite.data import ImageData, Split, load_data, to_float
from suite.errors import RunFailed, expected
from suite.networks import network_inputs
from suite.training.loop import memory_format
from suite.units import Network, Pretrained

# At most so many images, and so many pixels, at a time: activations of large images in one batch
# outgrow the cache, and glibc hands such buffers back to the kernel after each layer.
BATCH_SIZE, BATCH_PIXELS = 500, 2**19
Count = int | None  # how many; None for all


@dataclass(frozen=True)
class Result:
    """One value for each image, (B,), and tensors to keep, such as maps."""

    per_image: Tensor
    tensors: dict[str, Tensor] = field(default_factory=dict)


def images_needed(n_images: Count = None, first: int = 0, step: int = 1, **_: object) -> Count:
    """Return how many test images there must be to show some; None if any number will do."""
    return None if n_images is None else first + (n_images - 1) * step + 1


def checked_test_split(
    own: ImageData, shown: ImageData, name: str, count: Count, *, labelled: bool = True
) -> Split:
    """Return the test split of `shown`, if a network trained on `own` can take `count` of it.

    Raises:
        UsageError: fewer images than asked for, images of another shape, or, if the labels are
            needed (`labelled`), more classes.
    """
    where = f"data set {name!r}"
    if count is not None and count > len(shown.test.images):
        most = f"at most {len(shown.test.images)} for the test split of {name!r}"
        raise expected("n_images", most, count)
    if shown.shape != own.shape:
        raise expected(where, f"images of shape {own.shape} as in training", shown.shape)
    if labelled and len(shown.classes) > len(own.classes):
        most = f"at most the {len(own.classes)} classes of the network"
        raise expected(where, most, len(shown.classes))
    return shown.test


def _no_related(unit: Network) -> "EvaluatedModel":
    raise RunFailed(f"{unit.network}: the evaluated model was made without a way to load others")


class EvaluatedModel:
    """A trained network in evaluation mode, with the images of its data set.

    Args:
        network: in evaluation mode; `folded` is a copy, faster because its batch normalisation is
            folded.
        unit: what the network is.
        data: the images of the unit.

    Attributes:
        related: loads the network of another unit, for metrics that compare two; set by who can.
    """

    def __init__(self, network: nn.Module, unit: Network, data: ImageData) -> None:
        self.network = network
        self.folded = folded_copy(network)
        self.unit = unit
        self.data = data
        self.related: Callable[[Network], EvaluatedModel] = _no_related
        self.device = next(network.parameters()).device
        self._cache: dict[Hashable, Tensor] = {}

    def test_images(
        self, count: Count, data: str | None = None, **which: Any
    ) -> tuple[Tensor, Tensor]:
        """Return test images as the network takes them, (B, C, H, W), and labels.

        Arguments and errors are those of `test_uint8`.
        """
        pixels, labels = self.test_uint8(count, data, **which)
        return self.as_inputs(pixels), labels

    def test_uint8(
        self,
        count: Count,
        data: str | None = None,
        *,
        first: int = 0,
        step: int = 1,
        labelled: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """Return `count` uint8 test images, (B, C, H, W), and labels.

        They are those at `first`, `first` + `step`, and so on.

        Raises:
            UsageError: see `checked_test_split`.
        """
        last = images_needed(count, first, step)
        shown = load_data(data) if data else self.data
        name = data or self.unit.data
        test = checked_test_split(self.data, shown, name, last, labelled=labelled)
        positions = slice(first, last, step)
        return test.images[positions].to(self.device), test.labels[positions].to(self.device)

    @property
    def pixel_range(self) -> tuple[float, float]:
        """Values that black and white get; a pretrained network normalises pixels itself."""
        return (0.0, 1.0) if isinstance(self.unit, Pretrained) else self.unit.pixel_range

    def as_inputs(self, pixels: Tensor) -> Tensor:
        """Return uint8 images as the network takes them."""
        if isinstance(self.unit, Pretrained):
            images = network_inputs(self.unit.network, pixels)
        else:
            images = to_float(pixels, self.pixel_range)
        return images.contiguous(memory_format=memory_format(self.network, self.device))

    def relabel(self, count: int, labels: str | Sequence[int] | None) -> None:
        """Keep the first test images, with other labels: see `suite.units.Pretrained`."""
        test = self.data.test.part(torch.arange(min(count, len(self.data.test.images))))
        if labels == "predicted":
            test = replace(test, labels=self.predict(test.images.to(self.device)).cpu())
        elif labels is not None:
            test = replace(test, labels=torch.tensor(labels)[test.labels])
        self.data = replace(self.data, test=test)

    def batches(
        self, n_images: int, first: int = 0, step: int = 1, *, size: int = 4
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Go through test images and labels, a few at a time; see `test_images`."""
        images, labels = self.test_images(n_images, first=first, step=step)
        return zip(images.split(size), labels.split(size), strict=True)

    @torch.no_grad()
    def logits(self, images: Tensor, *, batch_size: int | None = None) -> Tensor:
        """Return the logits of images, (B, classes), which may be uint8 images.

        So many at a time as `batch_size` says; by default as many as go fast.
        """
        fast = max(1, min(BATCH_SIZE, BATCH_PIXELS // images.shape[2:].numel()))
        pixels = images.dtype == torch.uint8
        batches = images.split(batch_size or fast)
        return torch.cat([self.folded(self.as_inputs(x) if pixels else x) for x in batches])

    def test_logits(self, count: Count, data: str | None = None) -> Tensor:
        """Return the logits of test images, (B, classes), computed once; see `test_uint8`."""
        key = ("test logits", count, data)
        return self.cached(key, lambda: self.logits(self.test_uint8(count, data)[0]))

    def predict(self, images: Tensor) -> Tensor:
        """Return the classes of highest logit, (B,); see `logits`."""
        return self.logits(images).argmax(1)

    def cached(self, key: Hashable, compute: Callable[[], Tensor]) -> Tensor:
        """Return what `compute` gives, computed once for a key: for what several metrics need."""
        if key not in self._cache:
            self._cache[key] = compute()
        return self._cache[key]

    def generator(self, seed: int) -> torch.Generator:
        """Return a source of random numbers on the device of the network."""
        return torch.Generator(self.device).manual_seed(seed)
