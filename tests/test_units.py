import dataclasses
import itertools
import json
import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from suite.errors import UsageError
from suite.units import Measurement, Training, data_names, from_identity, key, log_spaced

REQUIRED = {"data": "mnist5k", "network": "lenet5", "epochs": 3, "learning_rate": 0.001, "seed": 7}
PLAIN = Training(**REQUIRED)
OPTIONS = {"network_options": {"blocks": [1, 1]}, "pixel_range": (-1.0, 1.0), "n_train": 256}
OPTIONS |= {"batch_size": 64, "penalties": {"input_gradient": {"strength": 0.1}}}
FULL = Training(**REQUIRED | OPTIONS | {"network": "resnet"})
SETTINGS = {"saliency": "deeplift", "n_images": 20}
ENTROPY = Measurement(training=FULL, metric="entropy", settings=SETTINGS)
FINGERPRINTS = {"mnist5k": "f" * 64, "other": "0" * 64}
OTHER_VALUES = yaml.safe_load("""
{data: other, network: convnet, epochs: 4, learning_rate: 0.002, seed: 8, pixel_range: [-1.0, 1.0],
network_options: {width: 8}, n_train: 100, batch_size: 32, optimizer: other, group_dro: 0.01,
penalties: {input_gradient: {strength: 0.5}}, balance_groups: true, folds: 5, fold: 1, zoom: 1.5,
crop_padding: 4, flip: true, swap_halves: true, input_noise: 0.1, cosine_epochs: 20, clip: 1.0,
optimizer_options: {momentum: 0.9}, decay_epochs: [2, 3], label_smoothing: 0.1,
fixed_statistics: true, precision: bfloat16}
""")
NO_COUNTS = [0, -1, 2.5, 2.0, "3", True, math.nan, np.int64(3)]
NO_RATES = [0.0, -0.1, math.nan, math.inf, "0.1", None, True]
NO_RANGES = [(1.0, 0.0), (0.0, 0.0), (0.0, math.inf), (0.0,), "01", 1.0, ("0", "1")]
# Fields, values that they refuse, and what is expected instead.
BAD: list[tuple[str, list[Any], str]] = [
    ("data network optimizer", [None, 5, ["adam"]], "a name"),
    ("batch_size n_train", NO_COUNTS, "a positive integer"),
    ("epochs", [*NO_COUNTS[1:], 1.0, "1", None], "an integer of 0 or more"),
    ("learning_rate", NO_RATES, "a positive finite number"),
    ("seed", [-1, 2**63, 0.0, "0", None], "an integer in 0..2^63-1"),
    ("pixel_range", NO_RANGES, "two finite numbers, low < high"),
    ("group_dro clip", [0, -1.0, "1", True], "a positive finite number or None"),
    ("balance_groups swap_halves flip fixed_statistics", [1, None, "yes"], "True or False"),
    ("folds", [1, 0, -3, 2.0, "5"], "an integer of at least 2 or None"),
    ("fold", [1, -1, None, 0.0], "an integer in 0..0 for folds=None"),
    ("precision", ["float16", None, 32], "float32 or bfloat16"),
    ("zoom", [1, 0.5, "2", math.inf], "a finite number above 1, or None"),
    ("crop_padding", [-1, 1.0, None], "an integer of 0 or more"),
    ("input_noise", [-0.1, math.nan, None], "a finite number >= 0"),
    ("label_smoothing", [-0.1, 1, None], "a number from 0 to below 1"),
    ("decay_epochs", [5, "5", [0, 5], [5, 3], [5, 5], [2.0], None], "rising positive integers"),
    ("network_options", [[("width", 3)], {"width": object()}], "names and values"),
    ("penalties", [{1: {"strength": 0.1}}, ["input_gradient"]], "names, and settings for each"),
]
NO_FOLD = r"^fold: expected an integer in 0\.\.4 for folds=5, got"
NO_STRENGTH = "^strength of penalty 'input_gradient': expected a finite number >= 0, got "
NO_SETTINGS = r"penalty 'input_gradient': expected settings .* 0\.1"
SCHEDULES = "^decay_epochs: expected none together with cosine_epochs, got"
TOGETHER = [
    ({"cosine_epochs": 9, "decay_epochs": [2]}, SCHEDULES),
    ({"penalties": {"input_gradient": 0.1}}, NO_SETTINGS),
    *(({"folds": 5, "fold": fold}, NO_FOLD) for fold in (-1, 5, 1.0, None, True)),
]
for value in (-0.1, math.nan, math.inf, "0.1", None, True, [0.1]):
    penalties = {"input_gradient": {"strength": value}}
    TOGETHER.append(({"penalties": penalties}, NO_STRENGTH + re.escape(repr(value))))


class TestIdentity:
    def test_leaves_defaults_out(self):
        assert PLAIN.identity == {"unit": "training", "version": 1, **REQUIRED}
        expected = {"unit": "measurement", "version": 2, "metric": "accuracy"}
        expected |= {"training": PLAIN.identity}
        assert Measurement(training=PLAIN, metric="accuracy").identity == expected

    @pytest.mark.parametrize("unit", [PLAIN, FULL])
    def test_network_is_rebuilt(self, unit):
        values = unit.identity
        assert (json.loads(json.dumps(values)), from_identity(values)) == (values, unit)
        assert from_identity(values).identity == values

    @settings(deadline=None)
    @given(
        epochs=st.integers(1, 10**6),
        learning_rate=st.floats(min_value=0, exclude_min=True, allow_infinity=False),
        seed=st.integers(0, 2**63 - 1),
        strength=st.floats(min_value=0, allow_infinity=False),
        n_train=st.none() | st.integers(1, 10**6),
        low=st.floats(-10, 0),
    )
    def test_any_network_is_rebuilt(self, strength, low, **fields):
        penalties = {"input_gradient": {"strength": strength}}
        unit = Training(**REQUIRED | fields, pixel_range=(low, 1.0), penalties=penalties)
        again = from_identity(json.loads(json.dumps(unit.identity)))
        assert (again, key(again, FINGERPRINTS)) == (unit, key(unit, FINGERPRINTS))


class TestKey:
    def test_golden(self):
        assert key(PLAIN, FINGERPRINTS) == "95b42eb4b9ff9cead5a020eb225f7eef"
        assert key(FULL, FINGERPRINTS) == "8b71299f73635fbff767012c8badfea1"
        assert key(ENTROPY, FINGERPRINTS) == "26ab92f44dd85cba622e0fac9f7a201e"

    def test_survives_a_new_field(self):
        fields, options = [("momentum", float, 0.9)], {"frozen": True, "kw_only": True}
        grown = dataclasses.make_dataclass("Training", fields, bases=(Training,), **options)
        assert key(grown(**REQUIRED), FINGERPRINTS) == key(PLAIN, FINGERPRINTS)
        assert key(grown(**REQUIRED, momentum=0.8), FINGERPRINTS) != key(PLAIN, FINGERPRINTS)

    def test_values_name_every_field(self):
        assert OTHER_VALUES.keys() == {field.name for field in dataclasses.fields(Training)}

    @pytest.mark.parametrize("field", OTHER_VALUES)
    def test_depends_on_training(self, field):
        plain = replace(PLAIN, folds=5) if field == "fold" else PLAIN
        changed = replace(plain, **{field: OTHER_VALUES[field]})
        assert key(changed, FINGERPRINTS) != key(plain, FINGERPRINTS)
        measured = (Measurement(training=t, metric="accuracy") for t in (changed, plain))
        assert len({key(unit, FINGERPRINTS) for unit in measured}) == 2

    @pytest.mark.parametrize("changes", [{"metric": "accuracy"}, {"settings": {"n_images": 20}}])
    def test_depends_on_measurement(self, changes):
        assert key(replace(ENTROPY, **changes), FINGERPRINTS) != key(ENTROPY, FINGERPRINTS)

    def test_depends_on_all_data(self):
        unit = Measurement(training=PLAIN, metric="saliency_maps", settings={"data": "other"})
        assert data_names(unit) == ["mnist5k", "other"]
        names = {key(unit, FINGERPRINTS | {name: "1"}) for name in FINGERPRINTS}
        assert len(names | {key(unit, FINGERPRINTS)}) == 3

    def test_ignores_order_of_settings(self):
        settings = dict(reversed(ENTROPY.settings.items()))
        assert key(replace(ENTROPY, settings=settings), FINGERPRINTS) == key(ENTROPY, FINGERPRINTS)

    def test_list_for_the_pixel_range(self):
        unit = Training(**REQUIRED, pixel_range=[0.0, 1.0])  # type: ignore[arg-type]
        assert (unit, key(unit, FINGERPRINTS)) == (PLAIN, key(PLAIN, FINGERPRINTS))

    def test_list_of_decays(self):
        decays = Training(**REQUIRED, decay_epochs=(1, 2))
        assert Training(**REQUIRED, decay_epochs=[1, 2]) == decays
        assert Training(**REQUIRED, decay_epochs=[]).identity == PLAIN.identity


class TestRefused:
    @pytest.mark.parametrize(("fields", "values", "expected"), BAD)
    def test_bad_value(self, fields, values, expected):
        for field, value in itertools.product(fields.split(), values):
            with pytest.raises(UsageError) as caught:
                Training(**REQUIRED | {field: value})
            assert str(caught.value).startswith(f"{field}: expected {expected}")
            assert repr(value) in str(caught.value)

    @pytest.mark.parametrize(("fields", "expected"), TOGETHER)
    def test_inconsistent_values(self, fields, expected):
        assert Training(**REQUIRED, folds=5, fold=4).fold == 4
        with pytest.raises(UsageError, match=expected):
            Training(**REQUIRED | fields)

    @pytest.mark.parametrize(
        ("field", "value"),
        [("training", "lenet5"), ("metric", None), ("settings", 3), ("settings", {"x": {1, 2}})],
    )
    def test_field_of_a_measurement(self, field, value):
        fields = {"training": PLAIN, "metric": "accuracy", field: value}
        with pytest.raises(UsageError, match=f"^{field}: expected "):
            Measurement(**fields)


class TestLogSpaced:
    def test_has_equal_ratios(self):
        assert (log_spaced(0.01, 10, 4), log_spaced(5, 5, 1)) == ([0.01, 0.1, 1.0, 10.0], [5.0])
        assert log_spaced(1e-3, 1e3, 7) == [10.0**n for n in range(-3, 4)]
        assert log_spaced(1, 2, 3) == [1.0, 1.41421, 2.0]

    @pytest.mark.parametrize(
        "arguments",
        [(0, 1, 3), (-1, 1, 3), (2, 1, 3), (1, math.inf, 3), (math.nan, 1, 3), (1, 2, 0)],
    )
    def test_refuses(self, arguments):
        with pytest.raises(UsageError, match="expected"):
            log_spaced(*arguments)
