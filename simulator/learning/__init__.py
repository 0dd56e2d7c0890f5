"""Training of slot routing: many small systems side by side, imitation, then PPO."""
