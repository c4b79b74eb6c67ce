"""The eigenproblem of c x c that Appendix C puts in place of that of the input Hessian.

The matrix is B^T B of EfficientNet-Lite0 for one image, with H = B B^T. Its eigenvalues and
eigenvectors are timed in turns with the last part of the authors' way, which needs both. The
Jacobian is by far the longest part of their way, and is timed once.
"""

from typing import Any

import torch
from torch import Tensor

from benchmarks.input_hessian import authors_eigenpairs, authors_factor, subject
from benchmarks.timing import Row, median_row, seconds_of, time_in_turns

TITLE = "matrix of classes"
MOST_PERCENT = 5  # of the authors' way


def run(device: torch.device, *, quick: bool) -> list[Row]:
    """Time the eigenproblem, and the authors' way to all eigenpairs."""
    network, images = subject(device, 64 if quick else 224, 4)
    factors: list[Tensor] = []
    seconds = seconds_of(lambda: factors.append(authors_factor(network, images[:1])))
    (b,) = factors
    matrix = b.T @ b
    functions: dict[str, Any] = {
        "matrix": lambda: torch.linalg.eigh(matrix),
        "end": lambda: authors_eigenpairs(b),
    }
    times = time_in_turns(functions, rounds=3 if quick else 9)
    shares = [100 * x / (seconds + end) for x, end in zip(times["matrix"], times["end"])]
    size = " x ".join(f"{n:,}" for n in matrix.shape)
    case = f"eigenvalues and eigenvectors of {size}"
    return [
        median_row(TITLE, case, [1000 * s for s in times["matrix"]], "ms"),
        median_row(TITLE, f"{case} / authors' way", shares, "%", at_most=MOST_PERCENT),
    ]
