"""``python -m tachograph``: the same as ``tachograph``."""

from __future__ import annotations

import sys

from tachograph.cli import main

if __name__ == "__main__":
    sys.exit(main())
