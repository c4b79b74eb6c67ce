"""Tell whoever runs `python -m reglib` where the commands are."""

raise SystemExit("reglib is the library; its suite runs in a checkout of it: python -m suite")
