"""The CIFAR ResNet's training pass in Triton: a few fat programs a kernel, so that many small networks share a GPU.

bfloat16 maps that lie pixel after pixel, float32 weights and sums. ``chain.run_chain`` is the whole pass;
``kernels_for`` says where to use it.
"""

from longtail.models.kernels.choice import Kernels, can_run, kernels_for

__all__ = ["Kernels", "can_run", "kernels_for"]
