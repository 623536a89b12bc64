"""The dashboard: a client of the daemon's control API. It never loads torch, hivemind or libp2p."""
