"""Text to tokens to shards; and which sequence of which shard every position of the global shuffle is."""
