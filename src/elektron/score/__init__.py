"""What the discriminator says about text."""
