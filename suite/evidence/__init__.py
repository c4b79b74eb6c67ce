"""From measured values to verdicts: statistics, claims, and the results that are kept."""

from suite.evidence.claims import judge, load_claims, load_published
from suite.evidence.results import Results, load_results, save_results
from suite.evidence.statistics import pearson, spearman
from suite.evidence.tables import interval_text, mean_text, paired_difference, select, sentences

__all__ = [
    "Results",
    "interval_text",
    "judge",
    "load_claims",
    "load_published",
    "load_results",
    "mean_text",
    "paired_difference",
    "pearson",
    "save_results",
    "select",
    "sentences",
    "spearman",
]
