"""Building the book."""
