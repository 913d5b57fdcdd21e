"""`python -m wildood`: the same as `wildood`."""

import sys

from wildood.cli.main import main

sys.exit(main())
