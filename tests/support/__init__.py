"""What tests share: pipelines, images, checkpoints, waiting, and how much of the cases a run has."""
