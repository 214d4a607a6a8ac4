"""`python -m tilecc`: the command line."""

import sys

from tilecc.cli import main

sys.exit(main())
