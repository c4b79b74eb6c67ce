import pandas as pd

from suite.evidence import html
from suite.evidence.rules import WORDS

PIXEL = b"\x89PNG"


class TestBadge:
    def test_words_differ_in_look(self):
        looks = {html.badge(word).partition('">')[0] for word in WORDS}
        assert len(looks) == 6  # words that say nothing about the effect look alike

    def test_text_is_escaped(self):
        assert "<b>" not in html.badge("<b>", "<b>")

    def test_link(self):
        assert '<a href="a.html#b">holds</a>' in html.badge("holds", link="a.html#b")


class TestTable:
    def test_cells_name_their_column(self):
        text = html.table(pd.DataFrame({"claim": ["x"], "here <i>now</i>": ["y"]}))
        assert '<td data-label="here now">y</td>' in text
        assert "<button" not in text

    def test_ordered_table_has_buttons_and_script(self):
        text = html.table(pd.DataFrame({"a ↑": [2], "b ↓": [1]}), ordered="a ↑")
        assert 'aria-sort="descending"><button type="button">a ↑</button>' in text
        assert 'aria-sort="none"><button type="button">b ↓</button>' in text
        assert text.count("<script>") == 1


class TestTabs:
    def test_first_tab_is_open(self):
        text = html.tabs({"Figure": "f", "Numbers": "", "Claims": "c"})
        assert text.count(" checked ") == 1
        assert "Numbers" not in text
        assert text.count('type="radio"') == 2

    def test_tab_sets_have_unique_names(self):
        assert html.tabs({"a": "x"}) != html.tabs({"a": "x"})


class TestSlider:
    def test_first_picture_is_shown(self):
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
