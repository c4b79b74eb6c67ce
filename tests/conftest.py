"""Fixtures that several files share."""

import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from suite.evidence.report import all_verdicts
from suite.evidence.statistics import permutation_p
from suite.runs import Store
from suite.runs.executors import Resources
from suite.units import Training

# A program of `test_library`, which refuses imports to the process that runs it.
collect_ignore = ["only_torch.py"]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a GPU where there is none, but for kernels that Triton interprets."""
    without = not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1"
    if without and item.get_closest_marker("gpu"):
        pytest.skip("there is no CUDA device")


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep tests from the user's store, and the user's settings from the tests."""
    monkeypatch.setenv("REGLIB_STORE", str(tmp_path / "default_store"))
    monkeypatch.setenv("REGLIB_FRESH", "1")  # what the project keeps decides no test
    for name in ("DEVICE", "JOBS", "DASK"):
        monkeypatch.delenv(f"REGLIB_{name}", raising=False)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Give every executor the same number of threads, which is what small tensors need."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _each_p_value_once() -> Iterator[None]:
    """Many tests judge the same kept results: permute for each correlation once."""
    known: dict[bytes, float] = {}

    def remember(*given: Any) -> float:
        key = pickle.dumps([None if v is None else np.asarray(v).tolist() for v in given])
        if key not in known:
            known[key] = permutation_p(*given)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("suite.evidence.statistics.permutation_p", remember)
        yield


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
