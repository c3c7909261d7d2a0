"""`python -m pydflash2` is the command `pydflash2`."""

import sys

from pydflash2.cli import main

sys.exit(main())
