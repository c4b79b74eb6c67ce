"""The first page: cards and the table of main claims."""

import pytest

from suite.book import front
from suite.evidence.claims import load_claims
from suite.evidence.report import all_verdicts
from suite.evidence.rules import WORDS
from suite.paths import read_yaml

CARDS = read_yaml(front.CARDS)["cards"]


@pytest.fixture(scope="module")
def verdicts():
    return all_verdicts(kept_only=True)


class TestAnswer:
    CARD = {"answer": "it holds", "expects": {"a": "holds"}}

    def test_expected_verdict(self):
        assert front.answer(self.CARD, {"a": "holds"}) == "it holds"

    @pytest.mark.parametrize("words", [{"a": "contradicted"}, {}])
    def test_other_verdict_takes_its_place(self, words):
        text = front.answer(self.CARD, words)
        assert "it holds" not in text
        assert "written for “holds” of a" in text


class TestCards:
    @pytest.mark.parametrize("card", CARDS, ids=lambda card: card["chapter"])
    def test_expects_headlines_and_words(self, card):
        headlines = {c["id"] for c in load_claims(card["chapter"]) if c["tier"] == "headline"}
        assert card["expects"].keys() <= headlines
        assert set(card["expects"].values()) <= set(WORDS)
        assert "main" not in card or card["main"] in headlines

    def test_every_card_has_picture_answer_and_scale(self, verdicts):
        text = front.cards(verdicts)
        assert text.count('<a class="card"') == len(CARDS) == text.count("<img ")
        assert text.count("claims held</span>") == text.count('class="scale"') == len(CARDS)

    def test_answers_fit_the_kept_verdicts(self, verdicts):
        assert "written for" not in front.cards(verdicts)


class TestTable:
    def test_row_for_each_paper(self, verdicts):
        text = front.table(verdicts)
        assert text.count("<tr>") == 1 + sum("use" in card for card in CARDS)
        assert 'href="how_to_read.html#verdicts"' in text
