"""`spes-peer doctor`: is this machine fit to take part, and if not, what is to be done. Looks, and changes nothing."""
