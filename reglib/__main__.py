"""`python -m reglib` says where the commands are."""

import sys

sys.exit(
    "reglib is the library. The suite that runs, measures and judges it is used from a checkout of "
    "the repository: python -m suite"
)
