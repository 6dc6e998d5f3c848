"""Networks in the idioms of exporters, with random weights: network(seed). The same seed gives the same network."""

import generators
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
    sequences.listener,
)
# What takes the place of a family in every second round.
OTHERS = {2: generators.denoiser, 3: generators.separator, 5: generators.decoder, 8: generators.decoder}
WITHOUT_FLOAT16 = {"NonMaxSuppression", "STFT", "GRU", "LSTM"}
SINCE_OPSET_14 = {"HardSwish", "LayerNormalization", "STFT", "Trilu"}


def network(seed: int) -> Network:
    """Families take turns; every fourth round is in float16 and half of the networks have opset 13, where the operators are
    there."""
    turn, family = divmod(seed, len(FAMILIES))
    make = OTHERS.get(family, FAMILIES[family]) if turn % 2 == 1 else FAMILIES[family]
    made = make(Net(seed))
    types = {n.op_type for n in made.model.graph.node}
    is_half, is_old = turn % 4 == 1, (seed + turn) % 2 == 0
    if is_old and not types & SINCE_OPSET_14:
        made.model.opset_import[0].version, made.model.ir_version = 13, 7
    return in_float16(made) if is_half and not types & WITHOUT_FLOAT16 else made
