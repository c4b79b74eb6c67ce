import pytest

from suite import methods
from suite.training.penalties import terms
from suite.units import Training

FIELDS = {"data": "mnist5k", "network": "top_gap", "epochs": 3, "learning_rate": 1e-3, "seed": 0}
TRAINED = [*methods.SIDE_BY_SIDE, *methods.MARGINAL_DENSITY, *methods.TOP_GAP]
LISTS = [methods.SIDE_BY_SIDE, methods.MARGINAL_DENSITY, methods.TOP_GAP, methods.SALIENCIES]


def test_names_are_unique_in_a_chapter():
    for chapter in LISTS:
        assert len({method.name for method in chapter}) == len(chapter)


@pytest.mark.parametrize("method", TRAINED, ids=lambda method: f"{method.name}-{method.title}")
def test_fields_are_those_of_a_training(method):
    before, training = dict(FIELDS), Training(**method.apply(FIELDS, 0.25))
    assert before == FIELDS
    named = [(term.name, term.strength) for term in terms(training.penalties)]
    assert all(value == (0.5 if name == "adversarial" else 0.25) for name, value in named)
    composed = {"none", "standard", "fgsm_at", "pgd_at"}  # and names joined by "+"
    assert (training == Training(**FIELDS)) == (method.name in composed or "+" in method.name)


def test_strength_of_attacks_is_the_radius():
    attacked = methods.attack(2, n_steps=3)(FIELDS, 0.1)["penalties"]["adversarial"]
    assert attacked == {"strength": 0.5, "epsilon": 0.1, "step_size": 0.05, "n_steps": 3}


def test_schedule_leaves_out_attacks():
    fields = methods.chain(methods.density, methods.attack(1))(FIELDS, 0.1)
    scheduled = methods.schedule(fields, warm_up=5, every=None)["penalties"]
    assert scheduled["marginal_density"] == {"strength": 0.1, "warm_up": 5}
    assert scheduled["adversarial"] == fields["penalties"]["adversarial"]
    assert methods.schedule(fields, warm_up=0) == fields
