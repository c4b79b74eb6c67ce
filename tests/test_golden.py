"""What must not move when code moves: keys of units, penalties, trainings and verdicts.

`python -m tests.test_golden` writes `tests/golden.json` anew; do that only when a meaning changes.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from suite import notebooks
from suite.data import load_data
from suite.evidence.claims import load_claims
from suite.evidence.results import load_results
from suite.networks import build_network
from suite.paths import KEPT_RESULTS
from suite.runs.execute import keys_of
from suite.training.loop import train
from suite.training.penalties import PENALTIES, TrainingContext, forward
from suite.units import Training

FILE = Path(__file__).parent / "golden.json"
PROFILE = "desktop"
CHAPTERS = [chapter for chapter in notebooks.chapters() if load_claims(chapter)]
RUNS = [(chapter, profile) for chapter in CHAPTERS for profile in notebooks.profiles(chapter)]
KEPT = sorted(file for c in CHAPTERS for file in KEPT_RESULTS.glob(f"*/{c}.verdicts.csv"))

# Every penalty, and those that have settings with other settings.
PENALTY_CASES = {
    "activation_l1": [{}, {"layers": "all"}],
    "adversarial": [
        {"epsilon": 0.1, "step_size": 0.1},
        {"epsilon": 0.5, "step_size": 0.2, "n_steps": 2, "norm": "l2", "random_start": True},
    ],
    "class_map_l1": [{}],
    "cure": [{"radius": 1.5}, {"radius": [0.5, 1.0]}],
    "finite_difference": [{}, {"step": 0.5}],
    "input_gradient": [{}],
    "input_hessian": [{}, {"n_samples": 2}],
    "landscape_curvature": [{}, {"kernel_width": 5}],
    "landscape_target": [{}, {"kernel_width": 5}],
    "logit_gradient": [{}, {"p": 1.2}],
    "marginal_density": [{}, {"implementation": "stable", "p": 2.8}],
    "score_matching": [{}, {"trace": "taylor", "n_samples": 2}],
}
CASES = [(name, n) for name, cases in PENALTY_CASES.items() for n in range(len(cases))]
RESNET = {"blocks": [1, 1], "width": 4}
SCHEDULE = {"optimizer": "sgd", "optimizer_options": {"momentum": 0.9}, "cosine_epochs": 3}
IMAGES = {"data": "digits-centred", "crop_padding": 4, "flip": True}
TARGET = {"landscape_target": {"strength": 1.0, "every": 2}}
STRIDED = {"network": "resnet", "network_options": RESNET | {"stem": "strided"}}
TOP_GAP = {"k": 0.2, "width": 4, "backbone_options": RESNET}
TWO = {"class_map_l1": {"strength": 1.0}, "marginal_density": {"strength": 0.1}}
TRAININGS = [
    {"network": "lenet5", "penalties": {"input_gradient": {"strength": 0.1}}},
    STRIDED | SCHEDULE | IMAGES | {"penalties": TARGET},
    {"network": "top_gap", "network_options": TOP_GAP, "penalties": TWO, "n_train": 64},
]


def unit_keys(chapter):
    """Return the keys of six units, spread over those of the profile."""
    return keys_of(notebooks.units_of(chapter, notebooks.resolve(chapter, PROFILE, {})))


def units_hash(chapter, profile):
    """Return the number of units of a profile, and a hash of what each of them is."""
    units = notebooks.units_of(chapter, notebooks.resolve(chapter, profile, {}))
    texts = sorted({json.dumps(unit.identity, sort_keys=True) for unit in units})
    return f"{len(texts)} {hashlib.sha256(repr(texts).encode()).hexdigest()[:16]}"


def penalty(name, number):
    """Return a penalty in float64, and the norm of its gradient by each parameter."""
    kind, options = "resnet", RESNET
    if name == "class_map_l1":
        kind, options = "top_gap", {"k": 0.3, "width": 4, "backbone_options": options}
    network = build_network(kind, (1, 16, 16), 10, options=options, seed=3).double()
    # Another order of rounding must not tip an activation over: no batch normalisation in training.
    network.eval()
    generator = torch.Generator().manual_seed(5)
    images = torch.rand(6, 1, 16, 16, generator=generator, dtype=torch.float64)
    labels = torch.tensor([0, 3, 9, 1, 1, 7])
    settings = {"context": TrainingContext(network, lambda: [images]), "with_activations": True}
    inputs = images.clone().requires_grad_()
    step = forward(network, inputs, labels, generator, epoch=1, **settings)
    values = PENALTIES[name](step, **PENALTY_CASES[name][number])
    parameters = list(network.parameters())
    gradients = torch.autograd.grad(values.mean(), parameters, allow_unused=True)
    norms = [0.0 if g is None else float(g.norm()) for g in gradients]
    return {"values": values.tolist(), "gradient_norms": norms}


def losses(number):
    """Return the mean losses of three epochs."""
    fields = {"data": "mnist5k", "epochs": 3, "learning_rate": 1e-3, "seed": 1}
    fields |= {"n_train": 256, "batch_size": 64}
    unit = Training(**fields | TRAININGS[number])
    return train(unit, load_data(unit.data), device=torch.device("cpu")).losses


@pytest.fixture(scope="module")
def golden():
    return json.loads(FILE.read_text())


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_units_have_the_keys_that_they_had(chapter, golden):
    assert set(golden["keys"][chapter]) <= set(unit_keys(chapter))


@pytest.mark.parametrize(("chapter", "profile"), RUNS, ids=map("-".join, RUNS))
def test_profiles_have_the_units_that_they_had(chapter, profile, golden, monkeypatch, tmp_path):
    monkeypatch.setenv("REGLIB_DATA", str(tmp_path))  # of "A or B" it is A
    assert units_hash(chapter, profile) == golden["units"][chapter][profile]


@pytest.mark.parametrize(("name", "number"), CASES)
def test_penalties_and_their_gradients_are_what_they_were(name, number, golden):
    before, now = golden["penalties"][name][number], penalty(name, number)
    for part, values in before.items():
        np.testing.assert_allclose(now[part], values, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("number", range(len(TRAININGS)))
def test_trainings_have_the_losses_that_they_had(number, golden):
    np.testing.assert_allclose(losses(number), golden["losses"][number], rtol=1e-4)


@pytest.mark.parametrize("file", KEPT, ids=lambda file: f"{file.parent.name}-{file.name}")
def test_kept_results_are_judged_as_they_were(file):
    chapter, kept = file.name.partition(".")[0], pd.read_csv(file)
    now = load_results(chapter, file.parent.name).verdicts
    on = ["claim", "data", "network"]
    both = kept.merge(now, on=on, suffixes=("_kept", ""), validate="one_to_one")
    assert len(both) == len(kept) == len(now)
    assert (both["verdict"] == both["verdict_kept"]).all(), "run: python -m suite judge"
    np.testing.assert_allclose(both["estimate"], both["estimate_kept"], rtol=1e-3, atol=2e-3)
    for column in ("low", "high", "p"):
        np.testing.assert_allclose(both[column], both[f"{column}_kept"], rtol=2e-2, atol=1e-2)


def write() -> None:
    """Write the golden values of the code as it is."""
    keys = {}
    for chapter in CHAPTERS:
        all_keys = list(dict.fromkeys(unit_keys(chapter)))
        keys[chapter] = all_keys[:: max(1, len(all_keys) // 6)][:6]
    units = {c: {p: units_hash(c, p) for p in notebooks.profiles(c)} for c in CHAPTERS}
    penalties = {
        name: [penalty(name, n) for n in range(len(cases))] for name, cases in PENALTY_CASES.items()
    }
    trainings = [losses(n) for n in range(len(TRAININGS))]
    contents = {"keys": keys, "units": units, "penalties": penalties, "losses": trainings}
    FILE.write_text(json.dumps(contents, indent=1) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    write()
