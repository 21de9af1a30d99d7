from unified_clip import ClipConfig

clip = ClipConfig.load("clip.toml")


def step(model, optimizer):
    clip.clip_(model.named_parameters())
    optimizer.step()
