"""Images that are decoded once, into a file that is mapped into memory.

A data set of photographs may be larger than memory, and decoding is slower than reading. So its
pixels are written to a file below the data folder, which later runs map. A process holds only the
images that it uses, and processes share them. The name of the file depends on the list of images
and on its SHA-256.
"""

import fcntl
import hashlib
import json
import math
import os
import shutil
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from suite.data.files import SIZE, crop_centre, image_size, open_image, read_photograph
from suite.data.splits import Split, interleave_classes
from suite.errors import UsageError, expected

FOLDER = "decoded"
AT_A_TIME = 1024
VERSION = 1  # of the decoding; a new number invalidates all files

Reader = Callable[[int], np.ndarray]  # returns value i, as uint8 or bool


def read_photographs(
    root: Path, paths: Sequence[Path], labels: Sequence[int], masks: Tensor | None = None
) -> Split:
    """Read photographs as a split that cycles through its classes.

    See `suite.data.files.read_photograph` for the crop. Images with masks are not rotated, since
    masks are drawn on the pixels as stored.

    Args:
        root: folder of data sets, for the decoded images.
        paths: of the images.
        labels: class of each image.
        masks: from `read_masks` for the same paths; None for none.

    Raises:
        UsageError: an image is missing or cannot be read (the message names it), or the disk is
            full.
    """
    class_indices = torch.tensor(labels, dtype=torch.int64)
    order = interleave_classes(class_indices)
    ordered = [paths[row] for row in order.tolist()]
    upright = masks is None

    def read(row: int) -> np.ndarray:
        return read_photograph(ordered[row], upright=upright).numpy()

    how = "photographs" if upright else "photographs as they lie"
    images, sha256 = decode_once(root, ordered, (len(paths), 3, SIZE, SIZE), how=how, read=read)
    masks = None if masks is None else masks[order]
    return Split(images, class_indices[order], masks, sha256=sha256)


def read_masks(root: Path, paths: Sequence[Path], files: Sequence[Path]) -> Tensor:
    """Read masks, (N, 224, 224), cropped like their images.

    They are True where the object covers at least half of a pixel.

    Args:
        root: folder of data sets, for the decoded masks.
        paths: of the images.
        files: their masks, white on the object.

    Raises:
        UsageError: a mask is missing, cannot be read, or does not have the size of its image.
    """

    def read(row: int) -> np.ndarray:
        mask, size = open_image(files[row], mode="L", upright=False), image_size(paths[row])
        if mask.size != size:
            same = f"a mask of the size of the image, {size[0]} x {size[1]}"
            raise expected(f"{paths[row]}", same, f"{mask.size[0]} x {mask.size[1]}")
        return np.asarray(crop_centre(mask, Image.Resampling.BOX)) > 127

    shape = (len(paths), SIZE, SIZE)
    return decode_once(root, [*files, *paths], shape, how="masks", read=read)[0].bool()


def decode_once(
    root: Path, files: Sequence[Path], shape: tuple[int, ...], *, how: str, read: Reader
) -> tuple[Tensor, str]:
    """Map the file of decoded values, and return its SHA-256; write it first if there is none.

    Args:
        root: folder of data sets.
        files: to decode; if the size or time of one changes, all are decoded again.
        shape: (N, ...) of all values.
        how: what the files are decoded to, in words.
        read: returns value i of N; several threads call it.

    Raises:
        UsageError: a file is missing or damaged, or the disk is full.
    """
    if shape[0] == 0:
        return torch.empty(shape, dtype=torch.uint8), hashlib.sha256().hexdigest()
    folder = root / FOLDER
    pattern = f"{_key(root, files, shape, how)}-*.uint8"
    if not (written := [*folder.glob(pattern)]):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                # Another process may have written the file in the meantime.
                written = [*folder.glob(pattern)] or [_write(folder, pattern, shape, how, read)]
        except OSError as error:
            text = error.strerror or error
            why = f"{folder}: decoded images cannot be written there ({text}); make room "
            why += "or set REGLIB_DATA to a folder that can be written, with links to the data sets"
            raise UsageError(why) from error
    return _map(written[0], shape), written[0].stem.partition("-")[2]


def _key(root: Path, files: Sequence[Path], shape: tuple[int, ...], how: str) -> str:
    digest = hashlib.sha256(json.dumps([VERSION, how, shape]).encode())
    for path in files:
        try:
            about = path.stat()
        except OSError as error:
            raise UsageError(f"{path}: not a readable image ({error})") from error
        name = os.path.relpath(path, root)
        digest.update(json.dumps([name, about.st_size, about.st_mtime_ns]).encode())
    return digest.hexdigest()[:32]


def _write(folder: Path, pattern: str, shape: tuple[int, ...], how: str, read: Reader) -> Path:
    """Write the values to a file, which gets its name when it is complete."""
    needed, free = math.prod(shape), shutil.disk_usage(folder).free
    if needed > free:
        advice = "make room, or set REGLIB_DATA to a folder on a larger disk"
        room = f"{needed / 1e9:.1f} GB of room for {shape[0]:,} decoded {how}"
        raise expected(f"{folder}", room, f"{free / 1e9:.1f} GB; {advice}")
    partial, digest = folder / "partial", hashlib.sha256()
    starts = tqdm(range(0, shape[0], AT_A_TIME), desc=f"decoding {how}", disable=None)
    try:
        # Not through a map: a full disk raises an error here, but there kills the process.
        with partial.open("wb") as file, ThreadPoolExecutor(os.cpu_count()) as pool:
            for start in starts:
                rows = range(start, min(start + AT_A_TIME, shape[0]))
                values = np.stack(list(pool.map(read, rows))).tobytes()
                file.write(values)
                digest.update(values)
            file.flush()
            os.fsync(file.fileno())
        return partial.replace(folder / pattern.replace("*", digest.hexdigest()))
    finally:
        partial.unlink(missing_ok=True)


def _map(path: Path, shape: tuple[int, ...]) -> Tensor:
    try:
        # Read-only: a private writable map must not be larger than memory.
        values = np.memmap(path, np.uint8, "r").reshape(shape)
    except (OSError, ValueError) as error:
        why = f"{path}: decoded images are damaged ({error}); remove the file to decode them again"
        raise UsageError(why) from error
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(values)
