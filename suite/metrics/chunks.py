"""The number of images to put through a network at a time."""

from torch import Tensor

# Small chunks are also faster on the CPU, where the C library keeps their buffers for reuse.
CHUNK_BYTES = 2**19


def chunk_size(images: Tensor) -> int:
    """Return how many images like `images[0]` fit into `CHUNK_BYTES`, at least one.

    On devices other than the CPU, a chunk may be 128 times as large.
    """
    most = CHUNK_BYTES * (1 if images.device.type == "cpu" else 128)
    return max(1, most // (images[0].numel() * images.element_size()))
