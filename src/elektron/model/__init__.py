"""What the networks are. Nothing here knows of data, files or training."""
