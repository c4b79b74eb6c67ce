"""From measured values to verdicts: statistics, claims, and the results that are kept."""
