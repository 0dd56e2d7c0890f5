"""The policy that looks ahead: each batch by what it leaves to those that are still to come."""
