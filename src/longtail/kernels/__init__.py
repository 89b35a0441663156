"""The CIFAR ResNet in Triton and CUDA: few large programs per kernel, so that many small networks share a GPU.

Maps are bfloat16 with the channels of a pixel together; weights and sums are float32. ``use_kernels`` attaches the
kernels to a model, ``chain`` is the whole pass (forward and backward, or evaluation), ``launch`` has one function per
kernel, and ``configs`` says which kernel and tile computes which shape.
"""

from longtail.kernels.choice import checked_for, use_kernels

__all__ = ["checked_for", "use_kernels"]
