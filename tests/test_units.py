import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.errors import UsageError
from suite.units import (
    Measurement,
    Training,
    data_names,
    from_identity,
    identity,
    key,
    log_spaced,
    training_of,
)

REQUIRED: dict[str, Any] = {
    "data": "mnist5k",
    "network": "lenet5",
    "epochs": 3,
    "learning_rate": 0.001,
    "seed": 7,
}
PLAIN = Training(**REQUIRED)
FULL = Training(
    **REQUIRED | {"network": "resnet"},
    network_options={"blocks": [1, 1]},
    pixel_range=(-1.0, 1.0),
    n_train=256,
    batch_size=64,
    penalties={"input_gradient": {"strength": 0.1}},
)
ENTROPY = Measurement(
    training=FULL, metric="entropy", settings={"saliency": "deeplift", "n_images": 20}
)
FINGERPRINTS = {"mnist5k": "f" * 64, "other": "0" * 64}
OTHER_VALUES: dict[str, Any] = {
    "data": "other",
    "network": "convnet",
    "epochs": 4,
    "learning_rate": 0.002,
    "seed": 8,
    "network_options": {"width": 8},
    "pixel_range": (-1.0, 1.0),
    "n_train": 100,
    "batch_size": 32,
    "optimizer": "other",
    "penalties": {"input_gradient": {"strength": 0.5}},
    "group_dro": 0.01,
    "balance_groups": True,
    "folds": 5,
    "fold": 1,
    "crop_padding": 4,
    "flip": True,
    "zoom": 1.5,
    "swap_halves": True,
    "input_noise": 0.1,
    "optimizer_options": {"momentum": 0.9},
    "cosine_epochs": 20,
    "decay_epochs": (2, 3),
    "label_smoothing": 0.1,
    "fixed_statistics": True,
    "clip": 1.0,
}


def test_identity_leaves_out_what_has_its_default() -> None:
    assert identity(PLAIN) == {"unit": "training", "version": 1, **REQUIRED}
    assert identity(Measurement(training=PLAIN, metric="accuracy")) == {
        "unit": "measurement",
        "version": 2,
        "training": identity(PLAIN),
        "metric": "accuracy",
    }


@pytest.mark.parametrize("unit", [PLAIN, FULL, ENTROPY])
def test_identity_gives_the_unit_back(unit: Training | Measurement) -> None:
    values = identity(unit)
    assert json.loads(json.dumps(values)) == values
    assert from_identity(values) == unit
    assert identity(from_identity(values)) == values


@given(
    epochs=st.integers(1, 10**6),
    learning_rate=st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    seed=st.integers(0, 2**63 - 1),
    strength=st.floats(min_value=0, allow_infinity=False),
    n_train=st.none() | st.integers(1, 10**6),
    low=st.floats(-10, 0),
)
def test_identity_of_any_unit_gives_it_back(strength: float, low: float, **fields: Any) -> None:
    unit = Training(
        data="mnist5k",
        network="lenet5",
        pixel_range=(low, 1.0),
        penalties={"input_gradient": {"strength": strength}},
        **fields,
    )
    again = from_identity(json.loads(json.dumps(identity(unit))))
    assert again == unit
    assert key(again, FINGERPRINTS) == key(unit, FINGERPRINTS)


@pytest.mark.parametrize(
    ("unit", "frozen"),
    [
        (PLAIN, "95b42eb4b9ff9cead5a020eb225f7eef"),
        (FULL, "8b71299f73635fbff767012c8badfea1"),
        (ENTROPY, "26ab92f44dd85cba622e0fac9f7a201e"),
    ],
)
def test_key_is_what_it_was_when_results_were_stored(
    unit: Training | Measurement, frozen: str
) -> None:
    assert key(unit, FINGERPRINTS) == frozen


def test_key_survives_a_new_field_with_a_default() -> None:
    grown = dataclasses.make_dataclass(
        "Training", [("momentum", float, 0.9)], bases=(Training,), frozen=True, kw_only=True
    )
    assert key(grown(**REQUIRED), FINGERPRINTS) == key(PLAIN, FINGERPRINTS)
    assert key(grown(**REQUIRED, momentum=0.8), FINGERPRINTS) != key(PLAIN, FINGERPRINTS)


def test_other_values_name_every_field() -> None:
    assert OTHER_VALUES.keys() == {field.name for field in dataclasses.fields(Training)}


@pytest.mark.parametrize("field", OTHER_VALUES)
def test_key_depends_on_every_field_of_a_training(field: str) -> None:
    plain = dataclasses.replace(PLAIN, folds=5) if field == "fold" else PLAIN
    changed = dataclasses.replace(plain, **{field: OTHER_VALUES[field]})
    assert key(changed, FINGERPRINTS) != key(plain, FINGERPRINTS)
    assert key(Measurement(training=changed, metric="accuracy"), FINGERPRINTS) != key(
        Measurement(training=plain, metric="accuracy"), FINGERPRINTS
    )


@pytest.mark.parametrize("changes", [{"metric": "accuracy"}, {"settings": {"n_images": 20}}])
def test_key_depends_on_every_field_of_a_measurement(changes: dict[str, Any]) -> None:
    changed = dataclasses.replace(ENTROPY, **changes)
    assert key(changed, FINGERPRINTS) != key(ENTROPY, FINGERPRINTS)


def test_key_depends_on_all_data_that_are_read() -> None:
    unit = Measurement(training=PLAIN, metric="saliency_maps", settings={"data": "other"})
    assert data_names(unit) == ["mnist5k", "other"]
    names = {key(unit, FINGERPRINTS | {name: "1"}) for name in FINGERPRINTS}
    assert len(names | {key(unit, FINGERPRINTS)}) == 3


def test_key_does_not_depend_on_the_order_of_settings() -> None:
    settings = dict(reversed(ENTROPY.settings.items()))
    assert key(dataclasses.replace(ENTROPY, settings=settings), FINGERPRINTS) == key(
        ENTROPY, FINGERPRINTS
    )


def test_a_list_for_the_pixel_range_is_the_same_unit_as_a_tuple() -> None:
    unit = Training(**REQUIRED, pixel_range=[0.0, 1.0])  # type: ignore[arg-type]
    assert unit == PLAIN
    assert key(unit, FINGERPRINTS) == key(PLAIN, FINGERPRINTS)


def test_a_list_of_decays_is_the_same_unit_as_a_tuple_and_an_empty_one_as_none() -> None:
    assert Training(**REQUIRED, decay_epochs=[1, 2]) == Training(**REQUIRED, decay_epochs=(1, 2))
    assert identity(Training(**REQUIRED, decay_epochs=[])) == identity(PLAIN)


def test_the_learning_rate_has_one_schedule_at_most() -> None:
    with pytest.raises(UsageError, match=r"^decay_epochs: expected none beside cosine_epochs, got"):
        Training(**REQUIRED, cosine_epochs=9, decay_epochs=[2])


def test_training_of_a_measurement_and_of_a_training() -> None:
    assert training_of(ENTROPY) is FULL
    assert training_of(PLAIN) is PLAIN


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("data", None, "a name"),
        ("network", 5, "a name"),
        ("optimizer", ["adam"], "a name"),
        *(
            (name, value, "a positive integer")
            for name in ("epochs", "batch_size", "n_train")
            for value in (0, -1, 2.5, 2.0, "3", True, math.nan, np.int64(3))
        ),
        *(
            ("learning_rate", value, "a positive finite number")
            for value in (0.0, -0.1, math.nan, math.inf, "0.1", None, True)
        ),
        *(("seed", value, "an integer in 0..2^63-1") for value in (-1, 2**63, 0.0, "0", None)),
        *(
            ("pixel_range", value, "two finite numbers, low < high")
            for value in ((1.0, 0.0), (0.0, 0.0), (0.0, math.inf), (0.0,), "01", 1.0, ("0", "1"))
        ),
        *(
            ("group_dro", value, "a positive finite number or None")
            for value in (0, -1.0, "1", True)
        ),
        *(
            (name, value, "True or False")
            for name in ("balance_groups", "swap_halves")
            for value in (1, None, "yes")
        ),
        *(("folds", value, "an integer of at least 2 or None") for value in (1, 0, -3, 2.0, "5")),
        *(("fold", value, "an integer in 0..0 for folds=None") for value in (1, -1, None, 0.0)),
        *(("zoom", value, "a finite number above 1, or None") for value in (1, 0.5, "2", math.inf)),
        *(
            ("decay_epochs", value, "rising positive integers")
            for value in (5, "5", [0, 5], [5, 3], [5, 5], [2.0], None)
        ),
        ("network_options", [("width", 3)], "names and values"),
        ("network_options", {"width": object()}, "names and values"),
        ("penalties", {1: {"strength": 0.1}}, "names, and settings for each"),
        ("penalties", ["input_gradient"], "names, and settings for each"),
    ],
)
def test_a_bad_value_is_refused_by_name(field: str, value: Any, expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        Training(**REQUIRED | {field: value})
    assert str(caught.value).startswith(f"{field}: expected {expected}")
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("fold", [-1, 5, 1.0, None, True])
def test_a_fold_that_there_is_not_is_refused(fold: Any) -> None:
    with pytest.raises(UsageError, match=r"^fold: expected an integer in 0\.\.4 for folds=5, got"):
        Training(**REQUIRED, folds=5, fold=fold)
    assert Training(**REQUIRED, folds=5, fold=4).fold == 4


@pytest.mark.parametrize("strength", [-0.1, math.nan, math.inf, "0.1", None, True, [0.1]])
def test_a_bad_strength_is_refused_by_name(strength: Any) -> None:
    with pytest.raises(UsageError) as caught:
        Training(**REQUIRED, penalties={"input_gradient": {"strength": strength}})
    assert str(caught.value).startswith(
        f"strength of penalty 'input_gradient': expected a finite number >= 0, got {strength!r}"
    )


def test_settings_of_a_penalty_that_are_a_number_are_refused() -> None:
    with pytest.raises(UsageError, match=r"penalty 'input_gradient': expected settings .* 0\.1"):
        Training(**REQUIRED, penalties={"input_gradient": 0.1})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("field", "value"),
    [("training", "lenet5"), ("metric", None), ("settings", 3), ("settings", {"x": {1, 2}})],
)
def test_a_bad_field_of_a_measurement_is_refused_by_name(field: str, value: Any) -> None:
    fields: dict[str, Any] = {"training": PLAIN, "metric": "accuracy", field: value}
    with pytest.raises(UsageError, match=f"^{field}: expected "):
        Measurement(**fields)


def test_log_spaced_has_equal_ratios() -> None:
    assert log_spaced(0.01, 10, 4) == [0.01, 0.1, 1.0, 10.0]
    assert log_spaced(5, 5, 1) == [5.0]
    np.testing.assert_allclose(log_spaced(1e-3, 7, 9), np.geomspace(1e-3, 7, 9), rtol=1e-5)


@pytest.mark.parametrize(
    "arguments", [(0, 1, 3), (-1, 1, 3), (2, 1, 3), (1, math.inf, 3), (math.nan, 1, 3), (1, 2, 0)]
)
def test_log_spaced_refuses_what_has_no_logarithm(arguments: tuple[float, float, int]) -> None:
    with pytest.raises(UsageError, match="expected"):
        log_spaced(*arguments)
