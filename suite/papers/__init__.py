"""What each chapter needs for itself: its units, its measures, its tables."""
