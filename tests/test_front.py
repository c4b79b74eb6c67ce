import pytest

from suite.book import front
from suite.evidence.claims import load_claims
from suite.evidence.rules import WORDS
from suite.paths import read_yaml

CARDS = read_yaml(front.CARDS)["cards"]


@pytest.fixture(scope="module")
def text(kept_verdicts):
    return front.cards(kept_verdicts)


class TestCards:
    @pytest.mark.parametrize("card", CARDS, ids=lambda card: card["chapter"])
    def test_expects_a_headline(self, card):
        tiers = {c["id"]: c["tier"] for c in load_claims(card["chapter"])}
        assert "headline" in {tiers[claim] for claim in card["expects"]}
        assert set(card["expects"].values()) <= set(WORDS)

    def test_every_card_is_complete(self, text):
        assert text.count('<a class="card"') == len(CARDS) == text.count("<img ")
        assert text.count(" claims held.") == text.count('class="scale"') == len(CARDS)
        assert text.count("<i>Here:</i>") == len(CARDS) == 1 + text.count("<i>Paper:</i>")
        assert "<i>Here:</i> not run" not in text

    def test_epochs_are_of_the_verdict(self, text):
        assert "the paper’s MLP, 80 epochs (paper: 80), accuracy" in text
        assert "LeNet-5, 6 epochs (paper: 25), accuracy" in text
        assert "EfficientNet-Lite0 (paper: ResNet-50), accuracy" in text  # not trained here

    def test_answers_fit_the_kept_verdicts(self, text, kept_verdicts):
        for word, phrase in (("contradicted", "written for"), ("not run", "On “")):
            assert phrase not in text
            assert front.cards(kept_verdicts.assign(verdict=word)).count(phrase) == len(CARDS)
