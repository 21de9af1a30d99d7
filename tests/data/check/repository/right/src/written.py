from unified_clip import ClipConfig

CLIP = ClipConfig(rule="global_norm", threshold=1.0)


def step(gradients):
    return CLIP(gradients)
