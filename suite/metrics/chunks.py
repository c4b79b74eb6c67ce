"""How many images to put through a network at a time."""

from torch import Tensor

# Small chunks are also the fast ones on the CPU: the C library keeps their buffers for reuse.
CHUNK_BYTES = 2**19


def chunk_size(images: Tensor, max_bytes: int | None = None) -> int:
    """Return how many images like `images[0]` fit into `max_bytes`, at least one.

    By default these are `CHUNK_BYTES` on the CPU, and 128 times as many elsewhere.

    Raises:
        ValueError: `max_bytes` is not positive.
    """
    if max_bytes is None:
        max_bytes = CHUNK_BYTES * (1 if images.device.type == "cpu" else 128)
    if max_bytes <= 0:
        raise ValueError(f"max_bytes: expected a positive number of bytes, got {max_bytes}")
    return max(1, max_bytes // (images[0].numel() * images.element_size()))
