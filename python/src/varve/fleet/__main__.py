"""The command ``python -m varve.fleet``."""

import sys

from varve.fleet._command import main

if __name__ == "__main__":
    sys.exit(main())
