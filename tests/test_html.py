"""Pieces of a page as HTML."""

import pandas as pd
import pytest

from suite.evidence import html
from suite.evidence.rules import WORDS

PIXEL = b"\x89PNG"


class TestBadge:
    @pytest.mark.parametrize("word", WORDS)
    def test_word_and_scale(self, word):
        text = html.badge(word, "reduced: MNIST")
        assert f">{word}</span>" in text
        assert '<span class="scale">reduced: MNIST</span>' in text

    def test_words_differ_in_look(self):
        looks = {html.badge(word).partition('">')[0] for word in WORDS}
        assert len(looks) == 6  # what says nothing of the effect looks alike

    def test_text_is_escaped(self):
        assert "<b>" not in html.badge("<b>", "<b>")

    def test_link(self):
        assert '<a href="a.html#b">holds</a>' in html.badge("holds", link="a.html#b")


class TestTable:
    def test_cells_name_their_column(self):
        text = html.table(pd.DataFrame({"claim": ["x"], "here <i>now</i>": ["y"]}))
        assert '<td data-label="here now">y</td>' in text
        assert "<button" not in text

    def test_ordered_one_has_buttons_and_brings_its_script(self):
        text = html.table(pd.DataFrame({"a ↑": [2], "b ↓": [1]}), ordered="a ↑")
        assert 'aria-sort="descending"><button type="button">a ↑</button>' in text
        assert 'aria-sort="none"><button type="button">b ↓</button>' in text
        assert text.count("<script>") == 1


class TestTabs:
    def test_first_tab_is_open_and_empty_ones_are_left_out(self):
        text = html.tabs({"Figure": "f", "Numbers": "", "Claims": "c"})
        assert text.count(" checked ") == 1
        assert "Numbers" not in text
        assert text.count('type="radio"') == 2

    def test_two_tab_sets_have_other_names(self):
        first, second = html.tabs({"a": "x"}), html.tabs({"a": "x"})
        assert first != second


class TestSlider:
    def test_first_picture_is_shown_and_all_have_alt_texts(self):
        text = html.slider({"none": PIXEL, "k = 2%": PIXEL}, alt="maps", label="k", caption="below")
        assert text.count("<img hidden") == 1
        assert 'alt="maps: none"' in text
        assert 'alt="maps: k = 2%"' in text
        assert 'max="1"' in text
        assert 'aria-label="k"' in text
        assert "<output>none</output>" in text


class TestCards:
    def test_card_is_a_link(self):
        names = ("link", "picture", "title", "verdict", "claim", "paper", "here", "network")
        entry = {name: f"the {name}" for name in (*names, "idea", "text", "held")}
        text = html.cards([entry, entry | {"paper": ""}])
        assert text.count('<a class="card" href="the link">') == 2
        assert "<i>Paper:</i> the claim, the paper." in text
        assert "<i>Claim:</i> the claim." in text
        assert text.count("the held".capitalize()) == text.count("the here; the network.") == 2
