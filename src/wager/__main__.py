"""`python -m wager` is `wager`."""

import sys

from wager.cli.main import main

sys.exit(main())
