"""Networks as they start, their landscapes, and the equations that the record checks."""

import numpy as np
import pytest
import torch

from suite import notebooks
from suite.errors import UsageError
from suite.papers import initial_landscapes, pilcro, pilcro_equations
from suite.papers.measure import measure
from suite.runs.compute import check
from suite.runs.execute import Job, evaluated, keys_of, run_job
from suite.store import Store
from suite.units import Measurement, Training

OPTIONS = {"blocks": [1, 1], "width": 4, "stem": "strided"}
FIELDS = {"data": "digits-centred", "network": "resnet", "network_options": OPTIONS}
START = Training(**FIELDS, epochs=0, learning_rate=1.0, seed=3)
NAME = initial_landscapes.START


def unit(metric, **settings):
    return Measurement(training=START, metric=metric, settings=settings)


@pytest.fixture(scope="module")
def subject():
    return evaluated(START, {}, torch.device("cpu"))


def test_a_network_as_it_starts_is_measured_and_not_stored(subject, tmp_path):
    asked = unit("importance_landscape", n_images=8)
    _, errors = run_job(Job([asked], str(tmp_path), "cpu"))
    assert errors == []
    (key,), store = keys_of([asked]), Store(tmp_path)
    expected = measure(subject, asked).tensors["landscape"]
    assert torch.equal(store.read_tensors(key)["landscape"], expected)
    assert store.read(keys_of([START])[0]) is None
    with pytest.raises(UsageError, match="epochs=0 trains nothing"):
        check([START])


def test_a_black_margin_has_no_gradient_unless_biases_or_statistics_say_so(subject):
    before = {name: value.clone() for name, value in subject.network.state_dict().items()}
    settings = {"n_images": 16, "n_draws": 1}
    maps = {
        condition: measure(subject, unit("landscape_under", condition=condition, **settings))
        for condition in initial_landscapes.CONDITIONS
    }
    rims = {name: float(result.tensors["landscape"][:4].max()) for name, result in maps.items()}
    assert (
        rims.pop("black margin")
        == 0
        == measure(subject, unit("importance_landscape", **settings)).tensors["landscape"][:4].max()
    )
    assert min(rims.values()) > 0.01
    assert all(torch.equal(before[n], v) for n, v in subject.network.state_dict().items())


def test_maps_become_correlations_with_paths_and_photographs():
    paths, noise = np.random.default_rng(0).random((2, 16, 16))
    arrays = {f"{NAME}|net|photographs|{n}": paths + n * (-1) ** n * noise for n in range(6)}
    arrays |= {f"{NAME}|net|its paths|0": paths, f"{NAME}|net|white noise|1": noise, "other": paths}
    rows, maps = initial_landscapes.derive(arrays)
    assert list(arrays) == ["other"]
    value = {(r["metric"], r.get("model"), r["seed"]): r["value"] for r in rows}
    assert value["with_paths", "photographs", 0] == pytest.approx(1)
    expected = np.corrcoef((paths - noise).ravel(), noise.ravel())[0, 1]
    assert value["with_photographs", "white noise", 1] == pytest.approx(expected)
    mean = paths + noise * 2 / 5  # of 0, -1, 2, -3 and 4 times the noise
    expected = np.corrcoef(mean.ravel(), paths.ravel())[0, 1]
    assert value["path_correlation", None, 0] == pytest.approx(expected)
    assert ("path_correlation", None, 2) not in value
    np.testing.assert_allclose(maps["initialisation|net|white noise"], noise, atol=1e-3)


def test_conditions_are_of_half_of_the_networks():
    values = notebooks.all_parameters("pilcro", notebooks.resolve("pilcro", "smoke", {}))
    values |= {"untrained": {"net": FIELDS | {"conditions": ["white noise"]}}, "n_start": 4}
    own = [u for u in pilcro.plan(values).units() if getattr(u, "training", u).epochs == 0]
    of_seed = [[u.metric for u in own if u.training.seed == seed] for seed in range(4)]
    assert [len(metrics) for metrics in of_seed] == [3, 2, 1, 1]
    assert {u.settings.get("n_images") for u in own if u.metric == "landscape_under"} == {128}


def test_equations_hold_but_as_printed_where_the_record_says_so():
    table = pilcro_equations.table()
    wrong = table[table["agrees"] == "no"]["compared"]
    assert len(table) == 16
    assert wrong.str.extract("(as printed|and with the kernel here|α₀T²|after equation 6)")[
        0
    ].tolist() == ["as printed"] * 3 + ["and with the kernel here", "α₀T²", "after equation 6"]
