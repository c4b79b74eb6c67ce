"""`python -m reglib` says where the commands are."""

raise SystemExit(
    "reglib is the library. The suite that runs, measures and judges it is used from a checkout of "
    "the repository: python -m suite"
)
