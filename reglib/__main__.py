"""Answer `python -m reglib`, which has no commands, with the command of the suite."""

raise SystemExit("reglib has no commands; its suite is used from a checkout: python -m suite")
