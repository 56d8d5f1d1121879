"""``python -m reliamsg`` is the command ``reliamsg``."""

import sys

from reliamsg.cli import main

if __name__ == "__main__":
    sys.exit(main())
