"""`python -m spes_peer`, the same as `spes-peer`."""

from spes_peer.cli import main

main()
