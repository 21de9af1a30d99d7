import unified_clip.torch as uc


def step(model, optimizer):
    uc.clip_grad_norm_(model.parameters(), max_norm=10.0)
    optimizer.step()
