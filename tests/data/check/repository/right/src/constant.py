from torch.nn.utils import clip_grad_norm_

MAX_NORM = 1.0


def clip(model):
    return clip_grad_norm_(model.parameters(), max_norm=MAX_NORM)
