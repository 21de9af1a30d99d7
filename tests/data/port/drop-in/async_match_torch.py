"""A parameter server's worker: pulls weights, computes, clips, pushes gradients."""
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
import unified_clip.torch


@dataclass
class ClipSpec:
    mode: str
    value: float | tuple[float, float]


def with_grad(module: nn.Module) -> Iterator[nn.Parameter]:
    yield from (p for p in module.parameters() if p.grad is not None)


def apply_clip(module: nn.Module, spec: ClipSpec | None) -> Tensor | None:
    match spec:
        case None:
            return None
        case ClipSpec("norm", float(limit)) if limit > 0:
            return unified_clip.torch.clip_grad_norm_(with_grad(module), limit)
        case ClipSpec("value", float(limit)):
            unified_clip.torch.clip_grad_value_(with_grad(module), limit)
        case ClipSpec("per_tensor", float(limit)):
            norms = [unified_clip.torch.clip_grad_norm_([p], limit) for p in with_grad(module)]
            return torch.stack(norms)
        case _:
            raise ValueError(f"unknown clip {spec!r}")
    return None


async def worker(module: nn.Module, batches: AsyncIterator[Tensor], spec: ClipSpec, *args, **kwargs) -> None:
    async for batch in batches:
        module.zero_grad()
        module(batch).mean().backward()
        if (norm := unified_clip.torch.clip_grad_norm_(module.parameters(), *args, **kwargs)) > 100:
            await asyncio.sleep(0)
            continue
        print("norm", norm.item(), "then", apply_clip(module, spec))
        await push([p.grad for p in with_grad(module)])


async def push(grads: list[Tensor]) -> None:
    await asyncio.gather(*(asyncio.to_thread(g.cpu) for g in grads))
