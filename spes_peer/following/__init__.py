"""Following a run: its records, whoever makes them, and the coordinator of the open round, whoever that is."""
