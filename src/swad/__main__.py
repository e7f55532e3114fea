"""`swad` and `python -m swad`: the command line, also from a checkout that is not installed."""

import sys


def main() -> None:
    """Run a command. Ctrl-C ends in one line also while the commands are imported."""
    try:
        from swad.cli import main as run
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
