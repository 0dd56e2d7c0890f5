"""Plain data that the processes of a deployment and its configuration share."""
