"""The bootstrap node: introduces peers, relays for those behind NAT, keeps the records, trains nothing."""
