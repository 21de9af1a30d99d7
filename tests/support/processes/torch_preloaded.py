"""The modules that all processes of PyTorch's worlds import once, before they are forked. An FSDP2 model imports the
compiler."""

# ruff: noqa: F401

import torch._dynamo
import torch.distributed.fsdp
import torch.distributed.tensor.parallel

import unified_clip.torch
