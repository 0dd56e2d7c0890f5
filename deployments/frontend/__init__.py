"""The process that clients talk to: it holds their requests until each has its one answer."""
