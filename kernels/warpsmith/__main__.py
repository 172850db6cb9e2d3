"""`python -m warpsmith`."""

import sys

from warpsmith.cli.main import main

sys.exit(main())
