"""What an organizer wants to know of a run: what its values mean and lead to, what it costs, and how long it takes with
which volunteers; and what everybody may know of a signed one. Words and figures: nothing is changed or served."""
