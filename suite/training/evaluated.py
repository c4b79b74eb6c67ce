"""A network to measure, with its images."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from reglib.autodiff import Map
from reglib.double_backward import folded_copy
from suite.data import ImageData, Split, load_data, to_float
from suite.errors import RunFailed, expected
from suite.networks.pretrained import network_inputs
from suite.training.loop import memory_format
from suite.units import Network, Pretrained

# The most images, and the most pixels, of a batch. Activations of a batch of large images outgrow
# the cache, and glibc returns such buffers to the kernel after each layer.
BATCH_SIZE, BATCH_PIXELS = 500, 2**19
Count = int | None  # how many; None for all


@dataclass(frozen=True)
class Result:
    """One value for each image, (B,), and tensors to keep, such as maps."""

    per_image: Tensor
    tensors: dict[str, Tensor] = field(default_factory=dict)


class ChangedLogits(nn.Module):
    """A network in evaluation mode, with a change of its logits, (B, classes)."""

    def __init__(self, network: nn.Module, change: Map) -> None:
        super().__init__()
        self.network, self.change = network, change
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        return self.change(self.network(images))


def images_needed(n_images: Count = None, first: int = 0, step: int = 1, **_: object) -> Count:
    """Return the number of test images that a selection needs; None if any number will do."""
    return None if n_images is None else first + (n_images - 1) * step + 1


def select_test_split(
    trained: ImageData, data: ImageData, name: str, count: Count, *, labelled: bool = True
) -> Split:
    """Return the test split of `data`, for a network that was trained on `trained`.

    Raises:
        UsageError: fewer than `count` images, images of another shape, or more classes where labels
            are needed (`labelled`).
    """
    argument = f"data set {name!r}"
    if count is not None and count > len(data.test.images):
        most = f"at most {len(data.test.images)} for the test split of {name!r}"
        raise expected("n_images", most, count)
    if data.shape != trained.shape:
        raise expected(argument, f"images of shape {trained.shape} as in training", data.shape)
    if labelled and len(data.classes) > len(trained.classes):
        most = f"at most the {len(trained.classes)} classes of the network"
        raise expected(argument, most, len(data.classes))
    return data.test


def _refuse_related(unit: Network) -> "EvaluatedModel":
    raise RunFailed(f"{unit.network}: the evaluated model was made without a way to load others")


class EvaluatedModel:
    """A trained network in evaluation mode, with the images of its data set.

    Args:
        network: network in evaluation mode; `folded` is a faster copy whose batch normalisation is
            folded.
        unit: unit of the network.
        data: images of the unit.

    Attributes:
        related: loads the network of another unit, for metrics that compare two networks; the
            caller sets it.
    """

    def __init__(self, network: nn.Module, unit: Network, data: ImageData) -> None:
        self.network = network
        self.folded = folded_copy(network)
        self.unit = unit
        self.data = data
        self.related: Callable[[Network], EvaluatedModel] = _refuse_related
        self.device = next(network.parameters()).device
        self._cache: dict[Hashable, Tensor] = {}

    def test_images(
        self, count: Count, data: str | None = None, **selection: Any
    ) -> tuple[Tensor, Tensor]:
        """Return test images in the network's range of pixels, (B, C, H, W), and labels.

        Arguments and errors are those of `test_uint8`.
        """
        pixels, labels = self.test_uint8(count, data, **selection)
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

        Their positions are `first`, `first` + `step`, and so on.

        Raises:
            UsageError: see `select_test_split`.
        """
        last = images_needed(count, first, step)
        selected = load_data(data) if data else self.data
        name = data or self.unit.data
        test = select_test_split(self.data, selected, name, last, labelled=labelled)
        positions = slice(first, last, step)
        return test.images[positions].to(self.device), test.labels[positions].to(self.device)

    @property
    def pixel_range(self) -> tuple[float, float]:
        """The values of black and white; a pretrained network normalises pixels itself."""
        return (0.0, 1.0) if isinstance(self.unit, Pretrained) else self.unit.pixel_range

    def as_inputs(self, pixels: Tensor) -> Tensor:
        """Convert uint8 images to the range and layout that the network takes."""
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
        """Return batches of test images and labels, of `size` images; see `test_images`."""
        images, labels = self.test_images(n_images, first=first, step=step)
        return zip(images.split(size), labels.split(size), strict=True)

    @torch.no_grad()
    def logits(self, images: Tensor, *, batch_size: int | None = None) -> Tensor:
        """Return the logits, (B, classes), of images in the network's range, or in uint8.

        By default, `batch_size` is a fast size.
        """
        fast = max(1, min(BATCH_SIZE, BATCH_PIXELS // images.shape[2:].numel()))
        uint8 = images.dtype == torch.uint8
        batches = images.split(batch_size or fast)
        return torch.cat([self.folded(self.as_inputs(x) if uint8 else x) for x in batches])

    def test_logits(self, count: Count, data: str | None = None) -> Tensor:
        """Return the logits of test images, (B, classes), computed once; see `test_uint8`."""
        key = ("test logits", count, data)
        return self.compute_once(key, lambda: self.logits(self.test_uint8(count, data)[0]))

    def predict(self, images: Tensor) -> Tensor:
        """Return the classes with the highest logits, (B,); see `logits`."""
        return self.logits(images).argmax(1)

    def compute_once(self, key: Hashable, compute: Callable[[], Tensor]) -> Tensor:
        """Return the result of `compute`, cached under a key, for several metrics to share."""
        if key not in self._cache:
            self._cache[key] = compute()
        return self._cache[key]

    def generator(self, seed: int) -> torch.Generator:
        """Return a source of random numbers on the device of the network."""
        return torch.Generator(self.device).manual_seed(seed)
