"""Banks of kernels, masks, tracing of channel groups, the network in training, and its extraction."""
