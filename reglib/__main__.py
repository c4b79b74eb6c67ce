"""Tell whoever runs `python -m reglib` where the commands are."""

raise SystemExit("reglib is the library; its suite is used from a checkout of it: python -m suite")
