"""Parts of a plan."""

from typing import Any, NamedTuple, Self


class PlannedMemory(NamedTuple):
    what: str
    bytes: int


class Segment(NamedTuple):
    first: str
    last: str
    nodes: int


class PlannedFinetune(NamedTuple):
    only_if_needed: bool  #: not asked for: the accuracy measurement decides
    layers: int
    streamed: int
    heaviest: str
    heaviest_bytes: int
    seconds: float


class PlannedDeviceLayer(NamedTuple):
    """Device memory that a layer needs while it is fine-tuned, on the GPU that needs most."""

    name: str
    streamed: bool
    bytes: int


class PlannedDevice(NamedTuple):
    """Memory that a run needs on each GPU. The runtime's own memory in calibration cannot be predicted."""

    devices: int  #: 0: the run uses the CPU only
    budget: int  #: bytes, of each device
    calibration_counters: int
    layers: list[PlannedDeviceLayer]

    @classmethod
    def of(cls, told: dict[str, Any]) -> Self:
        return cls(**{**told, "layers": [PlannedDeviceLayer(**layer) for layer in told["layers"]]})
