"""Before a machine is lent to a run for the first time: what the run is, what it will use here, and whether its owner
wants that. A folder that holds a run's manifest has been asked; one that was declined is left as it was."""
