"""`spes-peer chaos`: a run of real processes on this machine, struck by whatever happens to volunteers."""
