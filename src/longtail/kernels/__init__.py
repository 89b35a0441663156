"""The CIFAR ResNet in Triton, and in CUDA where a tile should hold its halo: a few fat programs a kernel, so that many
small networks share a GPU.

bfloat16 maps that lie pixel after pixel, float32 weights and sums. ``chain.run_chain`` is the whole pass, forward and
backward or for evaluation; ``use_kernels`` says where to use it; ``configs`` says which kernel, with which tile.
"""

from longtail.kernels.choice import use_kernels

__all__ = ["use_kernels"]
