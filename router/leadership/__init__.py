"""One router leads, another may wait: roles, terms, process ids, the actor."""
