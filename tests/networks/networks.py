"""Networks in the idioms of exporters, with random weights: network(seed). The same seed gives the same network."""

import images
import sequences
from net import Net, Network, in_float16

FAMILIES = (
    images.detector,
    sequences.transformer,
    images.segmenter,
    sequences.sound,
    images.classifier,
    sequences.transformer,
    images.anchors_of_grid,
    sequences.patches,
    images.super_resolution,
    sequences.front_end,
    images.channels_last,
    sequences.reader,
)
WITHOUT_FLOAT16 = {"NonMaxSuppression", "STFT", "GRU", "LSTM"}


def network(seed: int) -> Network:
    """Families take turns; every fourth round is in float16, where the operators have it."""
    made = FAMILIES[seed % len(FAMILIES)](Net(seed))
    is_half = seed // len(FAMILIES) % 4 == 1
    return in_float16(made) if is_half and not {n.op_type for n in made.model.graph.node} & WITHOUT_FLOAT16 else made
