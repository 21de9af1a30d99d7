import unified_clip.torch


def step(model):
    unified_clip.torch.clip_grad_norm_(model.parameters(), 1.0)
