"""One training loop for every paper."""
