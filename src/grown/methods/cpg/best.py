"""The best epoch of a training, kept beside the network that goes on training."""

from __future__ import annotations

import torch
from torch import Tensor, nn

NAME = "+best"  # no module of a template can have this name


class Best(nn.Module):
    """Copies of all that a network learns, as of its best epoch.

    It is a part of the network, so that a training that goes on after an interruption has it too.
    """

    accuracy: Tensor
    epoch: Tensor
    best_epoch: Tensor

    def __init__(self, network: nn.Module, patience: int) -> None:
        super().__init__()
        self.patience = patience
        norms = [buffer for name, buffer in network.named_buffers() if name.rpartition(".")[2].startswith("running_")]
        self._live: tuple[Tensor, ...] = (*network.parameters(), *norms)
        for number, tensor in enumerate(self._live):
            self.register_buffer(f"copy{number}", tensor.detach().clone())
        device = self._live[0].device
        self.register_buffer("accuracy", torch.tensor(-1.0, device=device))
        self.register_buffer("epoch", torch.tensor(0, device=device))
        self.register_buffer("best_epoch", torch.tensor(0, device=device))

    @torch.no_grad()
    def note(self, accuracy: float) -> None:
        """An epoch ended with this held-out accuracy."""
        self.epoch += 1
        if accuracy > float(self.accuracy):
            self.accuracy.fill_(accuracy)
            self.best_epoch.copy_(self.epoch)
            for number, tensor in enumerate(self._live):
                self.get_buffer(f"copy{number}").copy_(tensor)

    def is_over(self) -> bool:
        """Whether as many epochs went by without a better one as patience allows."""
        return int(self.epoch - self.best_epoch) >= self.patience

    @torch.no_grad()
    def bring_back(self) -> None:
        """Make the network what it was in its best epoch."""
        for number, tensor in enumerate(self._live):
            tensor.copy_(self.get_buffer(f"copy{number}"))
