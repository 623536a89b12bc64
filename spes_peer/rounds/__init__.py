"""Rounds: what the coordinator decides and what members check, as pure functions. No sockets, no clock, no asyncio."""
