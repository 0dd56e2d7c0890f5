"""The surroundings of simulated processes: virtual time, network and shared memory."""
