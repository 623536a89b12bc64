"""Who is here and who wants what: signed entries in a DHT, the process that keeps it, and the rules of claiming."""
