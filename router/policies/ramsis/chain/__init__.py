"""The decision process of one worker: its states, what follows a decision, and the best table."""
