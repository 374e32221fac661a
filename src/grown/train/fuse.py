"""A plain network's batch norms and the ReLUs behind them, run by one fused kernel pair while it trains on a GPU."""

from __future__ import annotations

from torch import Tensor, fx, nn

from grown.nn.accelerate import fused


class _NormRelu(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        kernels = fused()
        if not self.training or kernels is None:
            return nn.functional.relu(self.norm(x))
        y: Tensor = kernels.norm_relu(x, self.norm)
        return y


class Fusion:
    """Replaces pairs of modules of an `fx.GraphModule`, and puts them back."""

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self._before: dict[str, nn.Module] = {}
        if fused() is None or not isinstance(network, fx.GraphModule):
            return
        modules = dict(network.named_modules())
        for node in network.graph.nodes:
            norm = modules.get(str(node.target)) if node.op == "call_module" else None
            if not isinstance(norm, nn.BatchNorm2d) or not norm.affine or norm.momentum is None:
                continue
            readers = list(node.users)
            relu = modules.get(str(readers[0].target)) if len(readers) == 1 else None
            if isinstance(relu, nn.ReLU):
                self._swap(str(node.target), _NormRelu(norm))
                self._swap(str(readers[0].target), nn.Identity())

    def _swap(self, name: str, module: nn.Module) -> None:
        self._before[name] = self._network.get_submodule(name)
        self._network.set_submodule(name, module)

    def undo(self) -> None:
        """The network as it was."""
        for name, module in self._before.items():
            self._network.set_submodule(name, module.train(self._network.training))
        self._before.clear()
