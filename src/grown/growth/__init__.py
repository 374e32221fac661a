"""When to grow and how much: sizes, caps, candidates, the price of a channel."""
