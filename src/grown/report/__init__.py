"""What a run looks like: while it runs, and when it is done."""
