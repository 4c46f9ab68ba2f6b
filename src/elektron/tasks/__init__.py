"""What encoders are fine-tuned for: tasks as data."""
