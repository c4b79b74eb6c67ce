"""From measured values to verdicts: statistics, claims, and the results that are kept."""

from suite.evidence.claims import Verdict, judge, load_claims, load_published
from suite.evidence.results import Results, load_results, save_results
from suite.evidence.statistics import Interval, correlation, pearson, permutation_p, spearman

__all__ = [
    "Interval",
    "Results",
    "Verdict",
    "correlation",
    "judge",
    "load_claims",
    "load_published",
    "load_results",
    "pearson",
    "permutation_p",
    "save_results",
    "spearman",
]
