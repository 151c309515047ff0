"""What a forward pass of a layer leaves for its backward pass.

in: the input, a mask, the planned call.  out: `Saved`, which holds them together.
"""

from __future__ import annotations

from devkernels.linear.lean import LayerCall
from devkernels.linear.masks import Mask


class Saved:
    """What a forward pass leaves for its backward pass: the input and the mask that belong together. Used once."""

    __slots__ = ("_mask", "call", "data", "lead", "owner", "used", "x")

    def __init__(self, owner: object, x, mask: Mask | None, lead: tuple[int, ...], call: LayerCall | None = None,
                 data: object = None):  # fmt: skip
        self.owner, self.x, self._mask, self.lead, self.used = owner, x, mask, lead, False
        self.call, self.data = call, data  # of a repeated call, and its raw mask

    @property
    def mask(self) -> Mask | None:
        """The mask of the forward product."""
        if self._mask is None and self.data is not None:
            self._mask = self.call.mask(self.data)
        return self._mask
