"""One-file models: a container of tensors and one JSON object, its digests, its size by part."""
