"""Routing by a learned policy: shares of the instances, set anew for every slot of time."""
