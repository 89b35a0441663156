"""A model's forward pass without gradients: as it is, or replayed from CUDA graphs."""

import sys
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from longtail.models import Model
from longtail.train.capturing import capturing, tell_why_not
from longtail.train.streams import stream_for

__all__ = ["Replayed", "look"]


_Key = tuple[torch.Size, tuple[int, ...], bool]
"""Shape and strides of a batch, and whether the model was in training mode."""


class _Graph(NamedTuple):
    """A captured forward pass, and the memory that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    images: Tensor
    outputs: tuple[Tensor, Tensor]


@torch.no_grad()
def look(model: Model, precision: torch.dtype, images: Tensor) -> tuple[Tensor, Tensor]:
    """Plain logits and features of images, float32 or better.

    Args:
        model: in the mode it should be in.
        precision: of the forward pass.
        images: ``(B, channels, height, width)``.
    """
    with torch.autocast(images.device.type, torch.bfloat16, enabled=precision == torch.bfloat16):
        outputs = model(images, project=False)
    logits = outputs.logits.to(torch.promote_types(outputs.logits.dtype, torch.float32))
    return logits, outputs.features.to(logits.dtype)


class Replayed:
    """:func:`look`, replayed: a batch of a new shape is looked at plainly; when that shape comes again it is captured.

    In evaluation mode a batch of fewer images than a captured one is looked at by that one's graph. Where a pass cannot
    be captured, all are plain.

    A small network's launches take far longer than its kernels, and while one member of a fleet launches them the
    others wait. What a call gives is overwritten by the next one. It has to be called on :attr:`stream`, which is its
    own, so that several models can be looked at side by side.

    Args:
        model: may change its weights in place and its mode, but not be given other tensors (:meth:`holds`).
        precision: of the forward pass.
    """

    def __init__(self, model: Model, precision: torch.dtype) -> None:
        self.model, self._look = model, partial(look, model, precision)
        self._held = _tensors(model)  # kept, since graphs read them
        device = self._held[0].device
        self.stream = stream_for(self, device)
        self._pool = torch.cuda.graph_pool_handle()  # graphs that never run at the same time share their memory
        self._replays = True
        self._seen: set[_Key] = set()
        self._graphs: dict[_Key, _Graph] = {}

    def holds(self, model: Model) -> bool:
        """Whether the graphs are of this model's tensors."""
        return model is self.model and [t.data_ptr() for t in _tensors(model)] == [t.data_ptr() for t in self._held]

    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and features."""
        size = len(images)
        found = self._with_room_for(images)
        if found is None:
            key = (images.shape, images.stride(), self.model.training)
            found = self._capture(images) if self._replays and key in self._seen else None
            self._seen.add(key)
            if found is None:
                return self._look(images)
            self._graphs[key] = found
        found.images[:size].copy_(images)
        found.graph.replay()
        logits, features = found.outputs
        return logits[:size], features[:size]

    def _with_room_for(self, images: Tensor) -> _Graph | None:
        """A graph for as many images as these, or more: in evaluation mode they do not know of each other."""
        training = self.model.training
        for (shape, stride, mode), graph in self._graphs.items():
            room = shape[0] == len(images) if training else shape[0] >= len(images)
            if room and (shape[1:], stride, mode) == (images.shape[1:], images.stride(), training):
                return graph
        return None

    def _capture(self, images: Tensor) -> _Graph | None:
        """A graph for such images, if the pass can be captured."""
        graph, held, handled = torch.cuda.CUDAGraph(), images.clone(), sys.exception()
        try:
            with capturing(graph, self._pool, self.stream):
                return _Graph(graph, held, self._look(held))
        except RuntimeError as error:
            self._replays = False
            self._graphs.clear()
            tell_why_not("The forward pass", error, handled)
            return None


def _tensors(model: Model) -> list[Tensor]:
    return [tensor.detach() for tensor in (*model.parameters(), *model.buffers())]
