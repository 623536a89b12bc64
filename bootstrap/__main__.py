"""`python -m bootstrap`, the same as `spes-bootstrap`."""

from bootstrap.cli import main

main()
