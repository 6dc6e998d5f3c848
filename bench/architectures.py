#!/usr/bin/env python3
"""Networks of 24 families with random weights, as torch exports them: architectures.py FOLDER [NAME ...]

Writes FOLDER/NAME.onnx and 16 samples in FOLDER/samples/NAME/ for latency.py, which times what detent makes of them:

  python3 -m venv exporters && exporters/bin/pip install torch torchvision timm onnx
  exporters/bin/python bench/architectures.py networks
  build/venv/bin/python bench/latency.py networks --threads 1 2

Statistics of BatchNorm come from pictures, and its gains differ between channels, as they do after training."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
import torchvision
from torch import nn
from torch.nn import functional

SAMPLES = 16
Shape = tuple[int, ...]


def picture(seed: int, shape: Shape) -> np.ndarray:
    """Smooth blobs, with some grain."""
    random = np.random.default_rng(seed)
    total = np.zeros(shape, np.float32)
    for cells in (2, 4, 8, 16):
        rough = torch.from_numpy(random.standard_normal((*shape[:2], cells, cells)).astype(np.float32))
        total += functional.interpolate(rough, shape[2:], mode="bilinear").numpy() / cells**0.5
    return total + 0.1 * random.standard_normal(shape).astype(np.float32)


def sequence(seed: int, shape: Shape) -> np.ndarray:
    """A walk along the second axis."""
    steps = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return (
        np.float32(0.5) * np.cumsum(steps, axis=1) / np.sqrt(np.arange(1, shape[1] + 1, dtype=np.float32))[None, :, None]
        + np.float32(0.3) * steps
    )


class Residual(nn.Module):
    def __init__(self, *layers: nn.Module):
        super().__init__()
        self.body = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x)


def conv(i: int, o: int, size: int = 3, stride: int = 1, act: nn.Module | None = None, groups: int = 1) -> nn.Sequential:
    layers = [nn.Conv2d(i, o, size, stride, size // 2, groups=groups, bias=False), nn.BatchNorm2d(o)]
    return nn.Sequential(*layers, *([act] if act else []))


class Yolo(nn.Module):
    """A backbone of SiLU convolutions, two scales joined, a head for each."""

    def __init__(self) -> None:
        super().__init__()
        silu = nn.SiLU()
        block = lambda c: Residual(conv(c, c, 1, act=silu), conv(c, c, act=silu))  # noqa: E731
        self.stem = nn.Sequential(
            conv(3, 16, stride=2, act=silu),
            conv(16, 32, stride=2, act=silu),
            block(32),
            conv(32, 64, stride=2, act=silu),
            block(64),
        )
        self.deep = nn.Sequential(conv(64, 128, stride=2, act=silu), block(128), block(128))
        self.join = conv(192, 64, act=silu)
        self.heads = nn.ModuleList([nn.Conv2d(64, 85, 1), nn.Conv2d(128, 85, 1)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        fine = self.stem(x)
        deep = self.deep(fine)
        fine = self.join(torch.cat([fine, functional.interpolate(deep, scale_factor=2.0)], 1))
        outputs = [head(y).flatten(2) for head, y in zip(self.heads, (fine, deep))]
        return torch.cat(outputs, 2).sigmoid()


def srgan() -> nn.Module:
    block = lambda: Residual(nn.Conv2d(48, 48, 3, padding=1), nn.PReLU(48), nn.Conv2d(48, 48, 3, padding=1))  # noqa: E731
    return nn.Sequential(
        nn.Conv2d(3, 48, 9, padding=4),
        nn.PReLU(),
        *[block() for _ in range(6)],
        nn.Conv2d(48, 192, 3, padding=1),
        nn.PixelShuffle(2),
        nn.PReLU(),
        nn.Conv2d(48, 3, 9, padding=4),
    )


class Turned(nn.Module):
    """From [batch, time, channels], and of several results the first."""

    def __init__(self, body: nn.Module, turn: bool):
        super().__init__()
        self.body, self.turn = body, turn

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.body(x.transpose(1, 2) if self.turn else x)
        return made[0] if isinstance(made, tuple) else made


def hifigan() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv1d(80, 128, 7, padding=3)]
    width = 128
    for up in (8, 8, 2):
        layers += [nn.LeakyReLU(0.1), nn.ConvTranspose1d(width, width // 2, 2 * up, up, up // 2)]
        width //= 2
        for dilation in (1, 3):
            layers.append(
                Residual(
                    nn.LeakyReLU(0.1),
                    nn.Conv1d(width, width, 3, padding=dilation, dilation=dilation),
                    nn.LeakyReLU(0.1),
                    nn.Conv1d(width, width, 3, padding=1),
                )
            )
    return Turned(nn.Sequential(*layers, nn.LeakyReLU(), nn.Conv1d(width, 1, 7, padding=3), nn.Tanh()), True)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        q, k, v = self.qkv(x).view(batch, time, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        weights = (q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, time, width))


class Depthwise(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(width, 2 * width, 1),
            nn.GLU(1),
            nn.Conv1d(width, width, 15, padding=7, groups=width),
            nn.BatchNorm1d(width),
            nn.SiLU(),
            nn.Conv1d(width, width, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x.transpose(1, 2)).transpose(1, 2)


def conformer() -> nn.Module:
    width = 144
    feed = lambda: Residual(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))  # noqa: E731
    block = lambda: nn.Sequential(
        feed(),
        Residual(nn.LayerNorm(width), Attention(width, 4)),
        Residual(nn.LayerNorm(width), Depthwise(width)),
        feed(),
        nn.LayerNorm(width),
    )  # noqa: E731
    return nn.Sequential(nn.Linear(80, width), *[block() for _ in range(4)], nn.Linear(width, 128))


def deeplab() -> nn.Module:
    class Masks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = torchvision.models.segmentation.deeplabv3_mobilenet_v3_large(
                weights=None, weights_backbone=None, num_classes=21
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(x)["out"]

    return Masks()


def of_timm(name: str, **options: Any) -> Callable[[], nn.Module]:
    return lambda: timm.create_model(name, pretrained=False, exportable=True, **options)


def of_torchvision(name: str) -> Callable[[], nn.Module]:
    return lambda: getattr(torchvision.models, name)(weights=None)


def square(size: int) -> Shape:
    return 1, 3, size, size


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Shape]] = {
    "mobilenet_v2": (of_torchvision("mobilenet_v2"), square(224)),
    "mobilenet_v3": (of_torchvision("mobilenet_v3_large"), square(224)),
    "efficientnet_b0": (of_torchvision("efficientnet_b0"), square(224)),
    "efficientnet_lite0": (of_timm("efficientnet_lite0"), square(224)),
    "mobileone_s0": (of_timm("mobileone_s0"), square(224)),
    "shufflenet_v2": (of_torchvision("shufflenet_v2_x1_0"), square(224)),
    "ghostnet": (of_timm("ghostnet_100"), square(224)),
    "regnet_y_400mf": (of_torchvision("regnet_y_400mf"), square(224)),
    "resnet18": (of_torchvision("resnet18"), square(224)),
    "resnet50": (of_torchvision("resnet50"), square(224)),
    "densenet121": (of_torchvision("densenet121"), square(224)),
    "convnext_tiny": (of_torchvision("convnext_tiny"), square(224)),
    "mobilevit_xs": (of_timm("mobilevit_xs"), square(256)),
    "deit_tiny": (of_timm("deit_tiny_patch16_224"), square(224)),
    "swin_tiny": (of_timm("swin_tiny_patch4_window7_224"), square(224)),
    "vit_small": (of_timm("vit_small_patch16_224"), square(224)),
    "mixer_s32": (of_timm("mixer_s32_224"), square(224)),
    "efficientformer_l1": (of_timm("efficientformer_l1"), square(224)),
    "yolo": (Yolo, square(320)),
    "deeplab": (deeplab, square(256)),
    "srgan": (srgan, square(96)),
    "hifigan": (hifigan, (1, 64, 80)),
    "conformer": (conformer, (1, 200, 80)),
    "lstm": (lambda: Turned(nn.LSTM(80, 256, 2, batch_first=True), False), (1, 100, 80)),
    "gru": (lambda: Turned(nn.GRU(80, 256, 2, batch_first=True), False), (1, 100, 80)),
}


def fit_statistics(model: nn.Module, draw: Callable[[int], torch.Tensor]) -> None:
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    generator = torch.Generator().manual_seed(5)
    for norm in norms:
        norm.weight.data *= torch.exp(0.25 * torch.randn(norm.weight.shape, generator=generator))
        norm.bias.data += 0.1 * torch.randn(norm.bias.shape, generator=generator)
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    if norms:
        for seed in range(3):
            model(torch.cat([draw(500 + seed), draw(600 + seed)]))
    model.eval()


def export(folder: Path, name: str) -> None:
    torch.manual_seed(0)
    make, shape = NETWORKS[name]
    model = make().eval()
    draw = picture if len(shape) == 4 else sequence
    with torch.no_grad():
        fit_statistics(model, lambda seed: torch.from_numpy(draw(seed, shape)))
        torch.onnx.export(
            model,
            torch.from_numpy(draw(0, shape)),
            str(folder / f"{name}.onnx"),
            input_names=["input"],
            output_names=["output"],
            opset_version=16,
        )
    samples = folder / "samples" / name
    samples.mkdir(parents=True, exist_ok=True)
    for seed in range(SAMPLES):
        np.savez(samples / f"{seed:02}.npz", input=draw(100 + seed, shape))


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    folder, names = Path(sys.argv[1]), sys.argv[2:] or list(NETWORKS)
    os.makedirs(folder, exist_ok=True)
    for name in names:
        export(folder, name)
        print(f"{name}: {(folder / f'{name}.onnx').stat().st_size / 1e6:.1f} MB", flush=True)


if __name__ == "__main__":
    main()
