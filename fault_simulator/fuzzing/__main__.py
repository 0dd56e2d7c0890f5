"""`python -m fermata.fault_simulator.fuzzing`."""

import sys

from fermata.fault_simulator.fuzzing.campaign import main

sys.exit(main())
