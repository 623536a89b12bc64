"""`spes-peer generate`: a run's model writes, so that people see what it has learnt."""
