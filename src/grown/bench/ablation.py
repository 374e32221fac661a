"""The paper's ablation: growth alone, then one part of GROWN after another."""

from __future__ import annotations

PARTS = ("select", "sparse", "retrain")  # as the paper adds them
PREFIX = "ablation:"

# label -> the settings that switch off what is not added yet
STEPS: dict[str, tuple[str, ...]] = {
    f"{PREFIX}{'grow-only' if on == 0 else f'+{PARTS[on - 1]}'}": tuple(f"{part}=false" for part in PARTS[on:])
    for on in range(len(PARTS) + 1)
}
