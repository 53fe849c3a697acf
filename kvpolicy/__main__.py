"""`python -m kvpolicy`, for where the console script is not on the path."""

import sys

from kvpolicy.cli.main import main

sys.exit(main())
