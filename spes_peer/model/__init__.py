"""The decoder: a mixture of experts of which a peer trains some and holds the others frozen."""
