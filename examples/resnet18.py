"""ResNet-18 (He et al., 2015, arXiv:1512.03385), written in plain torch.

In: (batch, 3, height, width) images. Out: (batch, classes) logits.
Training mode updates the running statistics of every batch norm: a compiler must carry these buffers out of its graph.
"""

from __future__ import annotations

from torch import Tensor, nn


def conv3x3(channels_in: int, channels_out: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels_in, channels_out, kernel_size=3, stride=stride, padding=1, bias=False)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut, projected where the shape changes."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv3x3(channels_in, channels_out, stride)
        self.bn1 = nn.BatchNorm2d(channels_out)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = conv3x3(channels_out, channels_out)
        self.bn2 = nn.BatchNorm2d(channels_out)
        self.shortcut: nn.Module | None = None
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels_out, kernel_size=1, stride=stride, bias=False),
                nn.BatchNorm2d(channels_out),
            )

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.shortcut is None else self.shortcut(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


class ResNet18(nn.Module):
    """Four stages of two blocks each; ``width`` is the number of channels of the first stage."""

    def __init__(self, classes: int = 1000, width: int = 64) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, kernel_size=7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2, padding=1),
        )
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        self.stages = nn.Sequential(
            *(
                nn.Sequential(BasicBlock(a, b, stride=1 if stage == 0 else 2), BasicBlock(b, b, stride=1))
                for stage, (a, b) in enumerate(zip(widths, widths[1:], strict=False))
            )
        )
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, images: Tensor) -> Tensor:
        features = self.stages(self.stem(images))
        return self.head(self.pool(features).flatten(1))
