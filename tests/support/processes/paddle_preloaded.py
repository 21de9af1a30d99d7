"""The modules that all processes of Paddle's worlds import once, before they are forked."""

# ruff: noqa: F401

import paddle.distributed.fleet

import unified_clip.paddle
