"""`python -m suite`: run chapters, and see what came out."""

from suite.cli import main

if __name__ == "__main__":
    main()
