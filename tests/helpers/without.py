"""Run `swad` as if packages were not installed: `python without.py PACKAGE,PACKAGE ARGUMENTS`."""

import sys

if __name__ == "__main__":
    sys.modules.update(dict.fromkeys(sys.argv.pop(1).split(",")))
    sys.argv[0] = "swad"
    from swad.cli import main

    main()
