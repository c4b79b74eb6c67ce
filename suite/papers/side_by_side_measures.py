"""Measures that only the chapter "side by side" takes."""

import pandas as pd
import torch
from torch import Tensor

from reglib.saliency import surrogate_loss
from suite import metrics
from suite.errors import expected
from suite.metrics.saliency import caso_converged
from suite.papers.second_order import unit_vectors
from suite.papers.top_gap_measures import object_masks
from suite.training.evaluated import Count, EvaluatedModel, Result

GRADIENT = "logit_gradient"  # the default saliency
SHIFTS = ((-1, -1), (-1, 1), (1, -1), (1, 1))


def calibration_error(subject: EvaluatedModel, *, n_bins: int = 15) -> Result:
    r"""Compute the expected calibration error: one value.

    .. math:: \sum_b \frac{|I_b|}{n} \left| \frac{1}{|I_b|} \sum_{i \in I_b}
       \bigl( p_i - [\hat y_i = y_i] \bigr) \right|

    over bins of equal width of :math:`p_i`, the probability of the predicted class.

    Source: :cite:t:`guo2017`.
    """
    _, labels = subject.test_uint8(None)
    top, predicted = subject.test_logits(None).double().softmax(1).max(1)
    return Result(expected_calibration_error(top, predicted == labels, n_bins)[None])


def expected_calibration_error(top: Tensor, right: Tensor, n_bins: int) -> Tensor:
    """Return the error, from top probabilities (B,) and whether predictions are right (B,)."""
    bins = (top * n_bins).long().clamp_max(n_bins - 1)
    gaps = torch.zeros(n_bins, dtype=top.dtype, device=top.device)
    return gaps.index_add(0, bins, top - right.to(top.dtype)).abs().sum() / len(top)


def shifted_accuracy(subject: EvaluatedModel, *, pixels: int, n_images: Count = None) -> Result:
    """Return the share of four diagonal shifts after which an image is classified right.

    Shifts are by `pixels`; the outermost pixels are repeated.
    """
    images, labels = subject.test_uint8(n_images)
    if not 0 < pixels < min(images.shape[-2:]):
        raise expected("pixels", f"1 to {min(images.shape[-2:]) - 1}", pixels)
    right = [subject.predict(shift(images, pixels * y, pixels * x)) == labels for y, x in SHIFTS]
    return Result(torch.stack(right).double().mean(0))


def shift(images: Tensor, down: int, across: int) -> Tensor:
    """Shift images (B, C, H, W) by whole pixels; the outermost pixels are repeated."""
    height, width = images.shape[-2:]
    rows = (torch.arange(height, device=images.device) - down).clamp(0, height - 1)
    columns = (torch.arange(width, device=images.device) - across).clamp(0, width - 1)
    return images[..., rows[:, None], columns]


def grid_pointing(subject: EvaluatedModel, *, n_images: int, saliency: str = GRADIENT) -> Result:
    """Return the share of the absolute saliency of a class on its image in a grid of four.

    A square grid has a test image and the next images of three other classes. The position of the
    image cycles; chance is 1/4. The grid has twice the height and width of an image.

    Raises:
        UsageError: the images have fewer than four classes.

    Source: the grid pointing game of :cite:t:`bohle2021`, with four images of any confidence.
    """
    images, labels = subject.test_images(n_images)
    grids, positions = image_grids(images, labels)
    maps_of = metrics.saliency_maps(subject.folded, saliency)
    shares = []
    for rows in torch.arange(len(images)).split(16):
        maps = maps_of(grids[rows], labels[rows]).abs().sum(1)
        cells = maps.unflatten(2, (2, -1)).unflatten(1, (2, -1)).sum((2, 4)).flatten(1)
        shares.append((cells.gather(1, positions[rows, None])[:, 0] / cells.sum(1)).double())
    return Result(torch.cat(shares))


def image_grids(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return grids of each image with three of other classes, and the image's position, 0..3."""
    count = len(images)
    grids, positions = [], torch.arange(count, device=images.device) % 4
    for index in range(count):
        # The image, and the next images that are the first of their classes.
        firsts = pd.Series(labels.roll(-index).tolist()).drop_duplicates().index[:4]
        itself, *others = ((firsts + index) % count).tolist()
        if len(others) < 3:
            raise expected("n_images", "images of four classes or more", f"{count} of fewer")
        others.insert(int(positions[index]), itself)
        cells = images[others].unflatten(0, (2, 2))  # (2, 2, C, H, W)
        grids.append(cells.permute(2, 0, 3, 1, 4).flatten(3, 4).flatten(1, 2))
    return torch.stack(grids), positions


def share_on_object(
    subject: EvaluatedModel, *, n_images: int, saliency: str = GRADIENT, beyond_others: bool = False
) -> Result:
    """Return the share of the absolute saliency of the label on the mask of the object.

    With `beyond_others`, the mean share of the same map on the masks of all other images of the
    class is subtracted. A map that ignores its image then has 0 on average. The value is NaN where
    no other image has the class.

    Raises:
        UsageError: the data have no masks, or masks of another size than the images.
    """
    masks = object_masks(subject.data, subject.unit.data, "share_on_object")[:n_images]
    images, labels = subject.test_images(n_images)
    maps = metrics.saliency_maps(subject.folded, saliency)(images, labels).abs().sum(1).flatten(1)
    shares = maps / maps.sum(1, keepdim=True) @ masks.to(maps).flatten(1).T  # of map i on mask j
    values = shares.diagonal()
    if beyond_others:
        same = (labels == labels[:, None]).to(shares).fill_diagonal_(0)
        values = values - (shares * same).sum(1) / same.sum(1)
    return Result(values.double())


def second_order_distance(subject: EvaluatedModel, *, n_images: int) -> Result:
    """Return the distance of CASO from CAFO, both without L1 norm and of norm 1: from 0 to 2."""
    distances = []
    for images, _ in subject.batches(n_images):
        loss = surrogate_loss(subject.folded, images, subject.predict(images))
        second = unit_vectors(caso_converged(loss).maps)
        distances.append((second - unit_vectors(loss.gradient)).norm(dim=1))
    return Result(torch.cat(distances).double())
