"""The command `python -m suite`."""

import io
import sys
import traceback

from suite.cli import commands
from suite.errors import RunFailed, UsageError


def main() -> None:
    """Run the command; exit with 2 for a usage error, 1 for a failure, 3 if time is up."""
    for stream in (sys.stdout, sys.stderr):  # of any encoding; the output has Greek letters
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    words, debug = [word for word in sys.argv[1:] if word != "--debug"], "--debug" in sys.argv
    try:
        sys.exit(commands.run_words(words))
    except KeyboardInterrupt:
        print("interrupted; what was finished is stored, run again to go on", file=sys.stderr)
        sys.exit(130)
    except Exception as error:  # noqa: BLE001 - reported to the user
        if debug:
            traceback.print_exc()
        print(f"suite: {_message(error, debug)}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UsageError) else 1)


def _message(error: Exception, debug: bool) -> str:
    if isinstance(error, UsageError | RunFailed):
        return str(error) if debug else str(error).partition("Traceback in")[0].strip()
    return f"{type(error).__name__}: {error} (--debug shows where)"
