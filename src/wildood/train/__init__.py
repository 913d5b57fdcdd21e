"""The augmented Lagrangian, the one training loop, its history and its checkpoints."""
