"""A good guest: when this machine is its owner's alone, and the run has to rest."""
