"""Networks in the idioms of exporters, with random weights: network(seed). The same seed gives the same network."""

import exported
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
# What takes the place of all in every fourth round.
NEWER = (
    exported.language_model,
    exported.windows,
    exported.sampled,
    exported.conformer,
    exported.computed_shapes,
    exported.both_directions,
    exported.scaled_blocks,
    exported.log_features,
)
# What takes the place of a family in every other second round.
OTHERS = {2: generators.denoiser, 3: generators.separator, 5: generators.decoder, 8: generators.decoder}
WITHOUT_FLOAT16 = {"NonMaxSuppression", "STFT", "GRU", "LSTM", "GridSample", "TopK"}
SINCE_OPSET_14 = {"GridSample", "HardSwish", "LayerNormalization", "STFT", "Trilu"}


def network(seed: int) -> Network:
    """Families take turns; some rounds are in float16 and half of the networks have opset 13, where the operators are
    there."""
    turn, family = divmod(seed, len(FAMILIES))
    make = OTHERS.get(family, FAMILIES[family]) if turn % 2 == 1 else FAMILIES[family]
    if turn % 4 == 3:
        make = NEWER[(turn // 4 * len(FAMILIES) + family) % len(NEWER)]
    made = make(Net(seed))
    types = {n.op_type for n in made.model.graph.node}
    is_half, is_old = turn % 4 == 1 or turn % 8 == 7, (seed + turn) % 2 == 0
    if is_old and not types & SINCE_OPSET_14:
        made.model.opset_import[0].version, made.model.ir_version = 13, 7
    return in_float16(made) if is_half and not types & WITHOUT_FLOAT16 else made
