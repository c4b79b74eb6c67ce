import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from reglib.double_backward import layout
from suite.evidence.report import all_verdicts
from suite.evidence.statistics import permutation_p
from suite.runs import Store
from suite.runs.executors import Resources
from suite.units import Training

# A program of `test_library`, which refuses imports in its process.
collect_ignore = ["only_torch.py"]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests that need a GPU, unless there is one or Triton interprets kernels."""
    runs = torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"
    if not runs and item.get_closest_marker("gpu"):
        pytest.skip("there is no CUDA device")


@pytest.fixture(autouse=True)
def _private_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Separate the tests from the user's store and settings."""
    monkeypatch.setenv("REGLIB_STORE", str(tmp_path / "default_store"))
    monkeypatch.setenv("REGLIB_FRESH", "1")  # kept results decide no test
    for name in ("DEVICE", "JOBS", "DASK"):
        monkeypatch.delenv(f"REGLIB_{name}", raising=False)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Compute on one thread with every executor, which is the fastest for small tensors."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _p_values_computed_once() -> Iterator[None]:
    """Remember permutation tests: many tests judge the same kept results."""
    p_values: dict[bytes, float] = {}

    def remember(*arguments: Any) -> float:
        key = pickle.dumps([None if v is None else np.asarray(v).tolist() for v in arguments])
        if key not in p_values:
            p_values[key] = permutation_p(*arguments)
        return p_values[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("suite.evidence.statistics.permutation_p", remember)
        yield


@pytest.fixture
def lays_out_small_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let views bring small images into channels-last layout, too."""
    monkeypatch.setattr(layout, "LEAST_PIXELS", 64)


@pytest.fixture(scope="session")
def kept_verdicts() -> pd.DataFrame:
    return all_verdicts(kept_only=True)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def here() -> Resources:
    """Compute in the process of the test."""
    return Resources(device="cpu", jobs=1)


@pytest.fixture
def small() -> Callable[..., Training]:
    """Make a training of a fifth of a second; keyword arguments change its fields."""

    def make(**changes: Any) -> Training:
        fields: dict[str, Any] = {"data": "mnist5k", "network": "lenet5", "epochs": 1, "seed": 0}
        fields |= {"learning_rate": 1e-3, "n_train": 128, "batch_size": 64}
        fields |= {"penalties": {"input_gradient": {"strength": 0.1}}}
        return Training(**fields | changes)

    return make
