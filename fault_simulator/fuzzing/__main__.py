"""`python -m fermata.fault_simulator.fuzzing`."""

from fermata.fault_simulator.fuzzing.campaign import main

main()
