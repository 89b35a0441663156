"""The CIFAR ResNet in Triton, and in CUDA where a tile should hold its halo: a few fat programs a kernel, so that many
small networks share a GPU.

bfloat16 maps that lie pixel after pixel, float32 weights and sums. ``chain.run_chain`` is the whole pass, forward and
backward or for evaluation; ``kernels_for`` says where to use it; ``configs`` says which kernel, with which tile.
"""

from longtail.kernels.choice import Kernels, can_run, kernels_for

__all__ = ["Kernels", "can_run", "kernels_for"]
