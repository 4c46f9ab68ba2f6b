"""`python -m elektron`, the form torchrun wants."""

from elektron.cli import main

main()
