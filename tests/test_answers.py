import pytest

from suite.errors import UsageError
from suite.evidence import answers
from suite.evidence.claims import load_claims
from suite.evidence.rules import NOT_RUN

NAME = "pgd-accuracy-rises"


@pytest.fixture(scope="module")
def verdicts(kept_verdicts):
    return kept_verdicts[kept_verdicts["chapter"] == "top_gap"]


class TestClaimValue:
    def test_main_panel(self, verdicts):
        value = answers.claim_value("top_gap", verdicts, NAME)
        main = verdicts[(verdicts["claim"] == NAME) & verdicts["main"]]
        (row,) = main[main["profile"] == "workstation"].to_dict("records")
        assert (value.estimate, value.word, value.n) == (row["estimate"], row["verdict"], row["n"])
        assert value.scale.startswith(row["scale"])

    def test_other_panel(self, verdicts):
        assert answers.claim_value("top_gap", verdicts, NAME, "fashion_mnist").on == "Fashion-MNIST"

    def test_panel_that_was_not_run(self, verdicts):
        assert not answers.claim_value("top_gap", verdicts, NAME, "cub")

    def test_unknown_claim_is_refused(self, verdicts):
        with pytest.raises(UsageError, match=NAME):
            answers.claim_value("top_gap", verdicts, "pgd-accuracy-rise")


def test_names_of_values(verdicts):
    values = answers.values_of("top_gap", verdicts)
    assert {claim["id"] for claim in load_claims("top_gap")} <= values.keys()
    assert values[f"{NAME}@cifar10-jpeg"] == values[f"{NAME}@cifar10-jpeg/top_gap"]
    assert values[NAME] == values[f"{NAME}@resized:cifar10-jpeg:32"]


class TestHeadlineCells:
    def test_row_for_each_headline(self, verdicts):
        cells = answers.headline_cells("top_gap", verdicts)
        claims = [c for c in load_claims("top_gap") if c["tier"] == "headline"]
        assert len(cells) == len(claims)
        for claim, (_, row) in zip(claims, cells.iterrows(), strict=True):
            assert f"top_gap_record.html#top-gap-{claim['id']}" in row.iloc[0]
            assert 'class="verdict' in row["Verdict and scale"]

    def test_nothing_run(self, verdicts):
        cells = answers.headline_cells("top_gap", verdicts.iloc[:0])["Verdict and scale"]
        assert cells.str.contains(NOT_RUN).all()


@pytest.mark.parametrize(
    ("claim", "text"),
    [
        ({"published_effect": "+0.517", "form": "points"}, "+51.7 points"),
        ({"published_effect": "x 0.68", "form": "times"}, "0.68 times"),
        ({"published_effect": "+0.333"}, "0.33"),
        ({"paper": "a plot"}, "a plot"),
        ({}, "no number"),
    ],
)
def test_paper_text(claim, text):
    assert answers.paper_text(claim) == text
