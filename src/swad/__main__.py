"""`python -m swad`: the command line, also from a checkout that is not installed."""

from swad.cli import main

if __name__ == "__main__":
    main()
