"""A U-Net (Ronneberger et al., 2015, arXiv:1505.04597) with batch norm, written in plain torch.

In: (batch, channels, height, width) images. Out: (batch, classes, height, width) logits.
Sizes that do not divide by the total downsampling are padded on the way up, which makes the graph depend on the size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class DoubleConv(nn.Sequential):
    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__(
            nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
            nn.ReLU(inplace=True),
        )


class Up(nn.Module):
    """Double the resolution, pad to the skip connection's size, join and convolve."""

    def __init__(self, channels_in: int, channels_out: int, learned: bool) -> None:
        super().__init__()
        self.up: nn.Module
        if learned:
            self.up = nn.ConvTranspose2d(channels_in, channels_out, kernel_size=2, stride=2)
        else:
            self.up = nn.Sequential(
                nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True),
                nn.Conv2d(channels_in, channels_out, kernel_size=1),
            )
        self.conv = DoubleConv(2 * channels_out, channels_out)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        x = self.up(x)
        missing_h = skip.size(2) - x.size(2)
        missing_w = skip.size(3) - x.size(3)
        if missing_h or missing_w:
            x = F.pad(
                x, (missing_w // 2, missing_w - missing_w // 2, missing_h // 2, missing_h - missing_h // 2)
            )
        return self.conv(torch.cat([skip, x], dim=1))


class UNet(nn.Module):
    """``depth`` halvings of the resolution, each doubling the channels, and as many steps back up."""

    def __init__(
        self, channels: int = 3, classes: int = 2, width: int = 32, depth: int = 4, learned_up: bool = True
    ) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        self.stem = DoubleConv(channels, width)
        self.pool = nn.MaxPool2d(2)
        self.downs = nn.ModuleList(DoubleConv(a, b) for a, b in zip(widths, widths[1:], strict=False))
        self.ups = nn.ModuleList(
            Up(b, a, learned_up) for a, b in reversed(list(zip(widths, widths[1:], strict=False)))
        )
        self.head = nn.Conv2d(width, classes, kernel_size=1)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        skips = [x]
        for down in self.downs:
            x = down(self.pool(x))
            skips.append(x)
        skips.pop()
        for up in self.ups:
            x = up(x, skips.pop())
        return self.head(x)
